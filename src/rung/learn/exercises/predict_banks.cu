/*---
idea   = "A predicted count: each thread uses every second word of shared memory."
dtypes = ["f32"]
[[launch]]
kernel = "copy"
grid   = "ceil_div(N, 128)"
block  = 128
---*/
#include "rung.cuh"

constexpr float ANSWER_PASSES = BLANK_1;  // passes over the banks that one load of a warp from shared memory takes

extern "C" __global__ void copy(const float* x, float* out, int N)
{
    __shared__ float words[256];
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < N) words[2 * threadIdx.x] = x[i];
    __syncthreads();
    if (i < N) out[i] = words[2 * threadIdx.x];
}
