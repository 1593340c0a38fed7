/*---
idea   = "A predicted count: blocks of 256 threads with 32 KB of shared memory each."
dtypes = ["f32"]
[[launch]]
kernel = "row_sum"
grid   = "B"
block  = 256
---*/
#include "rung.cuh"

constexpr float ANSWER_BLOCKS = BLANK_1;  // blocks that a multiprocessor of an H200 holds at once

extern "C" __global__ void row_sum(const float* x, float* out, int N)
{
    __shared__ float part[8192];
    float sum = 0.0f;
    for (int n = threadIdx.x; n < N; n += 256) sum += x[int64_t(blockIdx.x) * N + n];
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int t = 1; t < 256; t++) sum += part[t];
    out[blockIdx.x] = sum;
}
