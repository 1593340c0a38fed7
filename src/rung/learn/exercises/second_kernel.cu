/*---
idea   = "Eight blocks share a row; a second kernel adds their sums."
dtypes = ["f32"]
buffers.parts = { shape = ["B", "8"], dtype = "f32" }
[[launch]]
kernel = "sum_parts"
grid   = ["8", "B"]
block  = 32
[[launch]]
kernel = "add_parts"
grid   = "ceil_div(B, 32)"
block  = 32
---*/
#include "rung.cuh"

extern "C" __global__ void sum_parts(const float* x, float* parts, int N)
{
    const int share = ceil_div(N, 8), first = blockIdx.x * share, end = BLANK_1;
    float sum = 0.0f;
    for (int n = first + threadIdx.x; n < end; n += 32) sum += x[int64_t(blockIdx.y) * N + n];
    sum = warp_sum(sum);
    if (threadIdx.x == 0) parts[BLANK_2] = sum;
}

extern "C" __global__ void add_parts(const float* parts, float* out, int B)
{
    const int row = blockIdx.x * 32 + threadIdx.x;
    if (row >= B) return;
    float sum = 0.0f;
    for (int part = 0; part < 8; part++) sum += BLANK_3;
    out[row] = sum;
}
