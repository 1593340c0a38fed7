/*---
idea   = "The sum of 16-bit numbers: where it is kept decides how exact it is."
dtypes = ["f16"]
[[launch]]
kernel = "row_sum"
grid   = "B"
block  = 32
---*/
#include "rung.cuh"

extern "C" __global__ void row_sum(const __half* x, float* out, int N)
{
    BLANK_1 sum = 0.0f;
    for (int n = threadIdx.x; n < N; n += 32) sum = BLANK_2;
    const float all = warp_sum(float(sum));
    if (threadIdx.x == 0) out[blockIdx.x] = all;
}
