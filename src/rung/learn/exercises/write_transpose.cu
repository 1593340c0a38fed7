/*---
idea   = "Transpose by tiles of 32 x 32: you write the whole kernel."
dtypes = ["f32"]
[[launch]]
kernel = "transpose"
grid   = ["ceil_div(C, 32)", "ceil_div(R, 32)"]
block  = [32, 32]
---*/
#include "rung.cuh"

extern "C" __global__ void transpose(const float* x, float* out, int R, int C)
{
    BLANK_1
}
