/*---
idea   = "Exercise 11: a block of 16 x 16 threads multiplies through tiles in shared memory."
dtypes = ["f32"]
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, 16)", "ceil_div(B * T, 16)"]
block  = [16, 16]
---*/
#include "rung.cuh"

extern "C" __global__ void matmul(const float* x, const float* weight, const float* bias, float* out, int B, int T, int C, int OC)
{
    __shared__ float xs[16][17], ws[16][17];
    const int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.0f;
    for (int c0 = 0; c0 < C; c0 += 16) {
        const int c = c0 + threadIdx.x, w_row = blockIdx.x * 16 + threadIdx.y;
        xs[threadIdx.y][threadIdx.x] = BLANK_1 ? x[int64_t(m) * C + c] : 0.0f;
        ws[threadIdx.y][threadIdx.x] = w_row < OC && c < C ? weight[int64_t(w_row) * C + c] : 0.0f;
        __syncthreads();
        for (int k = 0; k < 16; k++) sum += BLANK_2;
        BLANK_3;
    }
    if (m < B * T && n < OC) out[int64_t(m) * OC + n] = sum + (bias ? bias[n] : 0.0f);
}
