/*---
idea   = "Running sums of a row in shared memory: in each step a thread adds the sum that lies twice as far back as in the step before."
dtypes = ["f32"]
needs  = "N <= 128"
[[launch]]
kernel = "scan"
grid   = "B"
block  = 128
---*/
#include "rung.cuh"

extern "C" __global__ void scan(const float* x, float* out, int N)
{
    __shared__ float sums[128];
    const int n = threadIdx.x;
    sums[n] = n < N ? x[int64_t(blockIdx.x) * N + n] : 0.0f;
    for (int apart = 1; apart < 128; apart *= 2) {
        __syncthreads();
        const float before = BLANK_1 ? sums[BLANK_2] : 0.0f;
        BLANK_3;
        sums[n] += before;
    }
    if (n < N) out[int64_t(blockIdx.x) * N + n] = sums[n];
}
