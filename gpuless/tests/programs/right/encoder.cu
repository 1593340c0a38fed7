#include "common.h"
#include <vector>
__device__ inline float4 add_float4(const float4& a, const float4& b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__global__ void encoder_forward(float4* out, const int* inp, const float4* wte, const float4* wpe, int B, int T, int C)
{
    int C4 = C / 4, idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < B * T * C4) {
        int bt = idx / C4, t = bt % T, c4 = idx % C4;
        out[bt * C4 + c4] = add_float4(wte[inp[bt] * C4 + c4], wpe[t * C4 + c4]);
    }
}
__global__ void encoder_backward(float* dwte, float* dwpe, const float* dout, const int* inp, int B, int T, int C)
{
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < B * T * C) {
        int bt = idx / C, t = bt % T, c = idx % C;
        atomicAdd(dwte + inp[bt] * C + c, dout[idx]);
        atomicAdd(dwpe + t * C + c, dout[idx]);
    }
}
int main()
{
    const int B = 3, T = 10, C = 16, V = 11;
    float *wte = make_random_float(V * C), *wpe = make_random_float(T * C), *dout = make_random_float(B * T * C);
    std::vector<int> inp(B * T);
    std::vector<float> out(B * T * C), dwte(V * C), dwpe(T * C);
    for (auto& token : inp) token = rand() % V;
    for (int i = 0; i < B * T * C; i++) {
        int bt = i / C, t = bt % T, c = i % C;
        out[i] = wte[inp[bt] * C + c] + wpe[t * C + c];
        dwte[inp[bt] * C + c] += dout[i], dwpe[t * C + c] += dout[i];
    }
    int* d_inp;
    cudaCheck(cudaMalloc(&d_inp, B * T * sizeof(int)));
    cudaCheck(cudaMemcpy(d_inp, inp.data(), B * T * sizeof(int), cudaMemcpyHostToDevice));
    float *d_wte = to_device(wte, V * C), *d_wpe = to_device(wpe, T * C), *d_dout = to_device(dout, B * T * C), *d_out = to_device(dout, B * T * C);
    encoder_forward<<<ceil_div(B * T * C / 4, 64), 64>>>((float4*)d_out, d_inp, (float4*)d_wte, (float4*)d_wpe, B, T, C);
    validate_result(d_out, out.data(), "out", B * T * C);
    cudaMemset(d_wte, 0, V * C * 4), cudaMemset(d_wpe, 0, T * C * 4);
    encoder_backward<<<ceil_div(B * T * C, 64), 64>>>(d_wte, d_wpe, d_dout, d_inp, B, T, C);
    validate_result(d_wte, dwte.data(), "dwte", V * C);
    validate_result(d_wpe, dwpe.data(), "dwpe", T * C);
    printf("OK\n");
}
