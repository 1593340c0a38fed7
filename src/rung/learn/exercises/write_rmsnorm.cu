/*---
idea   = "RMS norm, one warp for each row: you write the whole kernel."
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
