/*---
idea   = "RMS norm, one warp for each row: all of the kernel is yours."
dtypes = ["f32"]
[[launch]]
kernel = "rmsnorm"
grid   = "B * T"
block  = 32
---*/
#include "rung.cuh"

extern "C" __global__ void rmsnorm(const float* x, const float* weight, float* out, int C, float eps)
{
    BLANK_1
}
