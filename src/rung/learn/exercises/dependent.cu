/*---
idea   = "The second kernel of a sum starts before the first has ended, and waits where it needs its results."
dtypes = ["f32"]
needs  = "sm >= 90"
buffers.parts = { shape = ["B", "4"], dtype = "f32" }
[[launch]]
kernel = "add_quarters"
grid   = ["B", "4"]
block  = 32
[[launch]]
kernel = "add_parts"
grid   = "ceil_div(B, 32)"
block  = 32
pdl    = true
---*/
#include "rung.cuh"
#include "ptx.cuh"

extern "C" __global__ void add_quarters(const float* x, float* parts, int N)
{
    const int share = ceil_div(N, 4), first = blockIdx.y * share, end = min(N, first + share);
    float sum = 0.0f;
    for (int n = first + threadIdx.x; n < end; n += 32) sum += x[int64_t(blockIdx.x) * N + n];
    sum = warp_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x * 4 + blockIdx.y] = sum;
    BLANK_1;  // the next kernel may start
}

extern "C" __global__ void add_parts(const float* parts, float* out, int B)
{
    const int row = blockIdx.x * 32 + threadIdx.x;
    BLANK_2;  // everything that the first kernel has written is visible
    if (row < B) out[row] = BLANK_3;
}
