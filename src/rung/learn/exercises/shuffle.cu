/*---
idea   = "One warp per row; the lanes add their sums through registers."
dtypes = ["f32"]
[[launch]]
kernel = "row_sum"
grid   = "ceil_div(B, 4)"
block  = 128
---*/
#include "rung.cuh"

extern "C" __global__ void row_sum(const float* x, float* out, int B, int N)
{
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= B) return;
    float sum = 0.0f;
    for (int n = lane; n < N; n += 32) sum += x[int64_t(row) * N + n];
    for (int offset = 16; offset > 0; offset /= 2) sum += BLANK_1;
    if (BLANK_2) out[row] = sum;
}
