/*---
idea   = "Add two tensors: you write the whole kernel."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 128)"
block  = 128
---*/
#include "rung.cuh"

extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    BLANK_1
}
