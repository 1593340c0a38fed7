/*---
idea   = "Bias and GELU are applied to a product before it is stored."
dtypes = ["f32"]
[[launch]]
kernel = "matmul_gelu"
grid   = ["ceil_div(OC, 32)", "ceil_div(B * T, 32)"]
block  = [32, 32]
---*/
#include "rung.cuh"

__device__ float gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }

extern "C" __global__ void matmul_gelu(const float* x, const float* weight, const float* bias, float* out, int B, int T, int C,
                                       int OC)
{
    __shared__ float xs[32][33], ws[32][33];
    const int m = blockIdx.y * 32 + threadIdx.y, n = blockIdx.x * 32 + threadIdx.x, w_row = blockIdx.x * 32 + threadIdx.y;
    float sum = 0.0f;
    for (int c0 = 0; c0 < C; c0 += 32) {
        const int c = c0 + threadIdx.x;
        xs[threadIdx.y][threadIdx.x] = m < B * T && c < C ? x[int64_t(m) * C + c] : 0.0f;
        ws[threadIdx.y][threadIdx.x] = w_row < OC && c < C ? weight[int64_t(w_row) * C + c] : 0.0f;
        __syncthreads();
        for (int k = 0; k < 32; k++) sum += xs[threadIdx.y][k] * ws[threadIdx.x][k];
        __syncthreads();
    }
    if (BLANK_1) out[int64_t(m) * OC + n] = BLANK_2;
}
