#include "common.h"
#include <vector>

__global__ void query_key(float* preatt, const float* inp, int B, int T, int C, int NH)
{
    int idx = blockIdx.x * blockDim.x + threadIdx.x, total = B * NH * T * T;
    if (idx < total) {
        int t2 = idx % T, t = idx / T % T, h = idx / (T * T) % NH, b = idx / (NH * T * T);
        if (t2 > t) { preatt[idx] = -INFINITY; return; }
        int C3 = C * 3, hs = C / NH;
        const float *q = inp + b * T * C3 + t * C3 + h * hs, *k = inp + b * T * C3 + t2 * C3 + h * hs + C;
        float val = 0.0f;
        for (int i = 0; i < hs; i++) val += q[i] * k[i];
        preatt[idx] = val * (1.0f / sqrtf(hs));
    }
}
__global__ void softmax(float* att, const float* preatt, int B, int T, int NH)
{
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < B * T * NH) {
        int h = idx % NH, t = idx / NH % T, b = idx / (NH * T);
        const float* p = preatt + b * NH * T * T + h * T * T + t * T;
        float* a = att + b * NH * T * T + h * T * T + t * T;
        float maxval = -FLT_MAX, sum = 0.0f;
        for (int i = 0; i <= t; i++) maxval = fmaxf(maxval, p[i]);
        for (int i = 0; i <= t; i++) sum += a[i] = expf(p[i] - maxval);
        for (int i = 0; i < T; i++) a[i] = i <= t ? a[i] / sum : 0.0f;
    }
}
__global__ void value(float* out, const float* att, const float* inp, int B, int T, int C, int NH)
{
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < B * T * NH) {
        int h = idx % NH, t = idx / NH % T, b = idx / (NH * T), C3 = C * 3, hs = C / NH;
        const float* a = att + b * NH * T * T + h * T * T + t * T;
        for (int i = 0; i < hs; i++) {
            float sum = 0.0f;
            for (int t2 = 0; t2 <= t; t2++) sum += a[t2] * inp[b * T * C3 + t2 * C3 + h * hs + C * 2 + i];
            out[b * T * C + t * C + h * hs + i] = sum;
        }
    }
}
// One block per query row: keys and values go through shared memory in tiles; a running maximum and sum.
template <int HS, int TILE>
__global__ void flash(float* out, const float* inp, int T, int C, int NH)
{
    __shared__ float k[TILE][HS + 1], v[TILE][HS];
    int bh = blockIdx.y, b = bh / NH, h = bh % NH, t = blockIdx.x * TILE + threadIdx.x, C3 = 3 * C;
    float q[HS], o[HS] = {}, m = -INFINITY, l = 0.0f;
    for (int i = 0; i < HS; i++) q[i] = t < T ? inp[(b * T + t) * C3 + h * HS + i] / sqrtf(HS) : 0.0f;
    for (int first = 0; first <= blockIdx.x * TILE; first += TILE) {
        for (int i = threadIdx.x; i < TILE * HS; i += TILE) {
            int row = first + i / HS, c = i % HS;
            k[i / HS][c] = row < T ? inp[(b * T + row) * C3 + C + h * HS + c] : 0.0f;
            v[i / HS][c] = row < T ? inp[(b * T + row) * C3 + 2 * C + h * HS + c] : 0.0f;
        }
        __syncthreads();
        for (int j = 0; j < TILE && first + j <= t; j++) {
            float s = 0.0f;
            for (int i = 0; i < HS; i++) s += q[i] * k[j][i];
            float fresh = fmaxf(m, s), scale = expf(m - fresh), p = expf(s - fresh);
            l = l * scale + p, m = fresh;
            for (int i = 0; i < HS; i++) o[i] = o[i] * scale + p * v[j][i];
        }
        __syncthreads();
    }
    if (t < T)
        for (int i = 0; i < HS; i++) out[(b * T + t) * C + h * HS + i] = o[i] / l;
}

int main()
{
    const int B = 2, T = 19, C = 16, NH = 2;
    float* inp = make_random_float(B * T * 3 * C);
    std::vector<float> out(B * T * C);
    for (int b = 0; b < B; b++) for (int h = 0; h < NH; h++) for (int t = 0; t < T; t++) {
        int hs = C / NH;
        std::vector<double> p(t + 1);
        double sum = 0;
        for (int u = 0; u <= t; u++) {
            double s = 0;
            for (int i = 0; i < hs; i++) s += inp[(b * T + t) * 3 * C + h * hs + i] * inp[(b * T + u) * 3 * C + C + h * hs + i];
            sum += p[u] = exp(s / sqrt(hs));
        }
        for (int i = 0; i < hs; i++) {
            double s = 0;
            for (int u = 0; u <= t; u++) s += p[u] / sum * inp[(b * T + u) * 3 * C + 2 * C + h * hs + i];
            out[(b * T + t) * C + h * hs + i] = s;
        }
    }
    float *d_inp = to_device(inp, B * T * 3 * C), *d_out, *d_pre, *d_att;
    cudaCheck(cudaMalloc(&d_out, B * T * C * sizeof(float)));
    cudaCheck(cudaMalloc(&d_pre, B * NH * T * T * sizeof(float)));
    cudaCheck(cudaMalloc(&d_att, B * NH * T * T * sizeof(float)));
    query_key<<<ceil_div(B * NH * T * T, 256), 256>>>(d_pre, d_inp, B, T, C, NH);
    softmax<<<ceil_div(B * T * NH, 64), 64>>>(d_att, d_pre, B, T, NH);
    value<<<ceil_div(B * T * NH, 64), 64>>>(d_out, d_att, d_inp, B, T, C, NH);
    cudaCheck(cudaGetLastError());
    validate_result(d_out, out.data(), "naive", B * T * C);
    cudaCheck(cudaMemset(d_out, 0, B * T * C * sizeof(float)));
    flash<C / NH, 8><<<dim3(ceil_div(T, 8), B * NH), 8>>>(d_out, d_inp, T, C, NH);
    cudaCheck(cudaGetLastError());
    validate_result(d_out, out.data(), "flash", B * T * C);
    printf("OK\n");
}
