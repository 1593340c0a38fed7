/*---
idea   = "A predicted count: each thread copies two neighbouring elements, one after the other."
dtypes = ["f32"]
[[launch]]
kernel = "copy"
grid   = "ceil_div(N, 2 * 128)"
block  = 128
---*/
#include "rung.cuh"

constexpr float ANSWER_SECTORS = BLANK_1;  // sectors of 32 bytes that one load of a warp touches

extern "C" __global__ void copy(const float* x, float* out, int N)
{
    const int64_t first = 2 * (int64_t(blockIdx.x) * blockDim.x + threadIdx.x);
    for (int k = 0; k < 2; k++)
        if (first + k < N) out[first + k] = x[first + k];
}
