/*---
idea   = "A tile without unused words: each row is permuted, so that a column lies in 32 banks."
dtypes = ["f32"]
[[launch]]
kernel = "transpose"
grid   = ["ceil_div(C, 32)", "ceil_div(R, 32)"]
block  = [32, 32]
---*/
#include "rung.cuh"

extern "C" __global__ void transpose(const float* x, float* out, int R, int C)
{
    __shared__ float tile[32][32];
    int row = blockIdx.y * 32 + threadIdx.y, col = blockIdx.x * 32 + threadIdx.x;
    if (row < R && col < C) tile[threadIdx.y][BLANK_1] = x[int64_t(row) * C + col];
    __syncthreads();
    row = blockIdx.y * 32 + threadIdx.x, col = blockIdx.x * 32 + threadIdx.y;
    if (row < R && col < C) out[int64_t(col) * R + row] = tile[threadIdx.x][BLANK_2];
}
