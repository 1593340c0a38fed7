/*---
idea   = "Four blocks share a row, and add their sums with atomic operations."
dtypes = ["f32"]
zeroed = ["out"]
[[launch]]
kernel = "row_sum"
grid   = ["4", "B"]
block  = 128
---*/
#include "rung.cuh"

extern "C" __global__ void row_sum(const float* x, float* out, int N)
{
    const float* row = x + int64_t(blockIdx.y) * N;
    float sum = 0.0f;
    for (int n = BLANK_1; n < N; n += BLANK_2) sum += row[n];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) BLANK_3;
}
