/*---
idea   = "One thread per element, out = a + b."
dtypes = ["f32"]
[tune]
BLOCK = [256, 32]
[[launch]]
kernel = "residual"
grid   = "BLANK_2"
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int64_t i = BLANK_1;
    if (i < int64_t(B) * T * C) out[i] = a[i] + b[i];
}
