/*---
idea = "Tiles of 32 x 32; whole tiles are loaded without tests, long sums are kept in two halves."
dtypes = ["f32"]
[bind]
M = "B * T"
K = "C"
N = "OC"
[[launch]]
kernel = "matmul"
grid = ["ceil_div(OC, 32)", "ceil_div(B * T, 32)"]
block = [32, 8]
---*/
extern "C" __global__ void matmul(const float* x, const float* weight, const float* bias, float* out, int M, int N, int K)
{
    __shared__ float xs[32][33], ws[32][33];
    const int tx = threadIdx.x, ty = threadIdx.y, m0 = blockIdx.y * 32, n0 = blockIdx.x * 32;
    float acc[4] = {}, low[4] = {};
    const bool whole = M % 32 == 0 && N % 32 == 0 && K % 32 == 0;
    for (int k0 = 0; k0 < K; k0 += 32) {
        if (whole) {
            for (int i = ty; i < 32; i += 8) {
                xs[i][tx] = x[size_t(m0 + i) * K + k0 + tx];
                ws[i][tx] = weight[size_t(n0 + i) * K + k0 + tx];
            }
        } else {
            for (int i = ty; i < 32; i += 8) {
                xs[i][tx] = m0 + i < M && k0 + tx < K ? x[size_t(m0 + i) * K + k0 + tx] : 0.0f;
                ws[i][tx] = n0 + i < N && k0 + tx < K ? weight[size_t(n0 + i) * K + k0 + tx] : 0.0f;
            }
        }
        __syncthreads();
        for (int k = 0; k < 32; k++)
            for (int j = 0; j < 4; j++) acc[j] += xs[ty + 8 * j][k] * ws[tx][k];
        if (k0 == 3072) {
            for (int j = 0; j < 4; j++) low[j] = acc[j], acc[j] = 0.0f;
        }
        __syncthreads();
    }
    for (int j = 0; j < 4; j++) {
        const int m = m0 + ty + 8 * j, n = n0 + tx;
        if (m < M && n < N) out[size_t(m) * N + n] = acc[j] + low[j] + (bias ? bias[n] : 0.0f);
    }
}
