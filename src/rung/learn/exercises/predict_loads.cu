/*---
idea   = "Predicted counts: a product through tiles, 32 x 32 threads, at 32 x 32 x 32."
dtypes = ["f32"]
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, 32)", "ceil_div(B * T, 32)"]
block  = [32, 32]
---*/
#include "rung.cuh"

constexpr float ANSWER_GLOBAL = BLANK_1;  // loads from global memory that all 32 warps make together
constexpr float ANSWER_SHARED = BLANK_2;  // loads from shared memory

extern "C" __global__ void matmul(const float* x, const float* weight, float* out, int B, int T, int C, int OC)
{
    __shared__ float xs[32][33], ws[32][33];
    const int m = blockIdx.y * 32 + threadIdx.y, n = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    for (int c0 = 0; c0 < C; c0 += 32) {
        const int c = c0 + threadIdx.x, w_row = blockIdx.x * 32 + threadIdx.y;
        xs[threadIdx.y][threadIdx.x] = m < B * T && c < C ? x[int64_t(m) * C + c] : 0.0f;
        ws[threadIdx.y][threadIdx.x] = w_row < OC && c < C ? weight[int64_t(w_row) * C + c] : 0.0f;
        __syncthreads();
        for (int k = 0; k < 32; k++) sum += xs[threadIdx.y][k] * ws[threadIdx.x][k];
        __syncthreads();
    }
    if (m < B * T && n < OC) out[int64_t(m) * OC + n] = sum;
}
