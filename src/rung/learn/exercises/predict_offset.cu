/*---
idea   = "A predicted count: each warp's elements start one element before a sector boundary."
dtypes = ["f32"]
[[launch]]
kernel = "copy"
grid   = "ceil_div(N + 1, 128)"
block  = 128
---*/
#include "rung.cuh"

constexpr float ANSWER_SECTORS = BLANK_1;  // sectors of 32 bytes that one load of a warp touches

extern "C" __global__ void copy(const float* x, float* out, int N)
{
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x - 1;
    if (i >= 0 && i < N) out[i] = x[i];
}
