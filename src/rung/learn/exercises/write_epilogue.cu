/*---
idea   = "A product with bias and GELU, through tiles of 32 x 32: you write the whole kernel."
dtypes = ["f32"]
[[launch]]
kernel = "matmul_gelu"
grid   = ["ceil_div(OC, 32)", "ceil_div(B * T, 32)"]
block  = [32, 32]
---*/
#include "rung.cuh"

__device__ float gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }

extern "C" __global__ void matmul_gelu(const float* x, const float* weight, const float* bias, float* out, int B, int T, int C,
                                       int OC)
{
    BLANK_1
}
