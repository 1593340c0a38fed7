/*---
idea   = "A tile goes through shared memory, so that reads and writes are both coalesced."
dtypes = ["f32"]
[tune]
TILE = [32]
[[launch]]
kernel = "transpose"
grid   = ["ceil_div(C, TILE)", "ceil_div(R, TILE)"]
block  = ["TILE", "TILE"]
---*/
#include "rung.cuh"

extern "C" __global__ void transpose(const float* x, float* out, int R, int C)
{
    __shared__ float tile[TILE][BLANK_1];
    const int c = blockIdx.x * TILE + threadIdx.x;
    const int r = blockIdx.y * TILE + threadIdx.y;
    if (r < R && c < C) tile[threadIdx.y][threadIdx.x] = x[int64_t(r) * C + c];
    __syncthreads();
    const int column = blockIdx.y * TILE + threadIdx.x;  // of out
    const int row = blockIdx.x * TILE + threadIdx.y;
    if (row < C && column < R) out[int64_t(row) * R + column] = BLANK_2;
}
