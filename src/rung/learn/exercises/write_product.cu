/*---
idea   = "A product through tiles of 32 x 32: you write the whole kernel."
dtypes = ["f32"]
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, 32)", "ceil_div(B * T, 32)"]
block  = [32, 32]
---*/
#include "rung.cuh"

extern "C" __global__ void matmul(const float* x, const float* weight, const float* bias, float* out, int B, int T, int C, int OC)
{
    BLANK_1
}
