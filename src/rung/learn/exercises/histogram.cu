/*---
idea   = "Counts of codes: many threads add to one place."
dtypes = ["f32"]
zeroed = ["out"]
[[launch]]
kernel = "histogram"
grid   = "ceil_div(N, 256)"
block  = 256
---*/
#include "rung.cuh"

extern "C" __global__ void histogram(const int* codes, int* out, int N)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (BLANK_1) BLANK_2;
}
