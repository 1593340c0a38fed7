/*---
idea   = "A fixed number of blocks computes GELU for any number of elements, each thread many of them."
dtypes = ["f32"]
[[launch]]
kernel = "gelu"
grid   = 8
block  = 128
---*/
#include "rung.cuh"

extern "C" __global__ void gelu(const float* x, float* out, int B, int T, int C)
{
    const int64_t count = int64_t(B) * T * C;
    for (int64_t i = BLANK_1; i < count; i += BLANK_2) {
        const float cube = 0.044715f * x[i] * x[i] * x[i];
        out[i] = 0.5f * x[i] * (1.0f + tanhf(0.7978845608f * (x[i] + cube)));
    }
}
