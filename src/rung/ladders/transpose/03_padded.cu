/*---
idea   = "A row of 33 elements instead of 32 shifts each row by a bank, so a column crosses all 32 banks."
expect = "Shared reads are no longer serialised 32-fold (16-fold in f16 and bf16): the rest is close to a copy."
found  = "320 -> 166 us (1.93x) at c8192x8192 in f32 on an H200, 76 % of the copy rate and 2.85x torch's speed; 188 -> 136 us (1.38x) in bf16, 3.23x torch's, but 46 % of the copy rate is not close to a copy. Inferred, not measured: 2-byte accesses leave as many instructions as in f32 for half the bytes."
provenance = "Version 2 of the flash-attention case study, which padded the rows of K for the same reason."
dtypes = ["f32", "f16", "bf16"]
[tune]
ROWS = [8, 4, 16, 32]
[[launch]]
kernel = "transpose"
grid   = ["ceil_div(C, 32)", "ceil_div(R, 32)"]
block  = [32, "ROWS"]
---*/
#include "rung.cuh"

constexpr int TILE = 32;

extern "C" __global__ void transpose(const Real* x, Real* out, int R, int C)
{
    __shared__ Real tile[TILE][TILE + 1];  // [row of x][column of x]
    const int c0 = blockIdx.x * TILE, r0 = blockIdx.y * TILE;

    for (int k = threadIdx.y; k < TILE; k += ROWS) {
        const int r = r0 + k, c = c0 + threadIdx.x;
        if (r < R && c < C) tile[k][threadIdx.x] = x[(size_t)r * C + c];
    }
    __syncthreads();
    for (int k = threadIdx.y; k < TILE; k += ROWS) {
        const int c = c0 + k, r = r0 + threadIdx.x;
        if (r < R && c < C) out[(size_t)c * R + r] = tile[threadIdx.x][k];
    }
}
