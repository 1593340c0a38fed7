/*---
idea   = "One thread per element: lanes read along a row of x and write down a column of out."
expect = "The reads are coalesced; every lane's write touches a separate sector, so about a quarter of the copy bandwidth at best, less for 2-byte types."
found  = "987 us at c8192x8192 in f32 on an H200, 13 % of the copy rate, half of the expected quarter; 962 us in bf16, 6 %. 0.48x and 0.46x torch's speed."
provenance = "The permute and unpermute kernels of the course project, reduced to two dimensions."
dtypes = ["f32", "f16", "bf16"]
[tune]
ROWS = [8, 4, 16, 32]
[[launch]]
kernel = "transpose"
grid   = ["ceil_div(C, 32)", "ceil_div(R, ROWS)"]
block  = [32, "ROWS"]
---*/
#include "rung.cuh"

extern "C" __global__ void transpose(const Real* x, Real* out, int R, int C)
{
    const int c = blockIdx.x * 32 + threadIdx.x;
    const int r = blockIdx.y * ROWS + threadIdx.y;
    if (r < R && c < C) out[(size_t)c * R + r] = x[(size_t)r * C + c];
}
