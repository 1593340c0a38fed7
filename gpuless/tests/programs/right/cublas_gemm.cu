#include <cstdio>
#include <cublas_v2.h>
#include <vector>
#define cublasCheck(status) do { if ((status) != CUBLAS_STATUS_SUCCESS) { printf("cublas error at line %d\n", __LINE__); return 1; } } while (0)
__global__ void add_bias(float* out, const float* bias, int n, int oc) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n * oc) out[i] += bias[i % oc]; }
int main()
{
    const int N = 7, C = 10, OC = 12;  // out (N, OC) = inp (N, C) @ weight (OC, C)^T + bias, by rows
    std::vector<float> inp(N * C), weight(OC * C), bias(OC), out(N * OC);
    for (int i = 0; i < N * C; i++) inp[i] = i % 7 - 3;
    for (int i = 0; i < OC * C; i++) weight[i] = i % 5 - 2;
    for (int i = 0; i < OC; i++) bias[i] = i;
    float *d_inp, *d_weight, *d_bias, *d_out;
    cudaMalloc(&d_inp, inp.size() * 4), cudaMalloc(&d_weight, weight.size() * 4), cudaMalloc(&d_bias, bias.size() * 4), cudaMalloc(&d_out, out.size() * 4);
    cudaMemcpy(d_inp, inp.data(), inp.size() * 4, cudaMemcpyHostToDevice), cudaMemcpy(d_weight, weight.data(), weight.size() * 4, cudaMemcpyHostToDevice);
    cudaMemcpy(d_bias, bias.data(), bias.size() * 4, cudaMemcpyHostToDevice);
    cublasHandle_t handle;
    cublasCheck(cublasCreate(&handle));
    const float alpha = 1.0f, beta = 0.0f;
    cublasCheck(cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, OC, N, C, &alpha, d_weight, C, d_inp, C, &beta, d_out, OC));
    add_bias<<<(N * OC + 63) / 64, 64>>>(d_out, d_bias, N, OC);
    cudaMemcpy(out.data(), d_out, out.size() * 4, cudaMemcpyDeviceToHost);
    for (int n = 0; n < N; n++) for (int o = 0; o < OC; o++) {
        float sum = bias[o];
        for (int c = 0; c < C; c++) sum += inp[n * C + c] * weight[o * C + c];
        if (out[n * OC + o] != sum) return printf("(%d, %d): %f, not %f\n", n, o, out[n * OC + o], sum), 1;
    }
    float dot = 0, expected = 0;
    cublasCheck(cublasSdot(handle, OC, d_bias, 1, d_out, 1, &dot));
    for (int o = 0; o < OC; o++) expected += bias[o] * out[o];
    if (cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &alpha, d_inp, 2, d_inp, 4, &beta, d_out, 4) != CUBLAS_STATUS_INVALID_VALUE) return puts("not refused"), 1;
    cublasCheck(cublasDestroy(handle));
    puts(dot == expected ? "OK" : "dot is wrong");
}
