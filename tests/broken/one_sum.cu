/*---
idea = "Right; classes.toml makes one mistake at a time in it."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid = "ceil_div(B * T * C, 256)"
block = 256
---*/
#include "rung.cuh"

__device__ int made;

extern "C" __global__ void residual(const Real* a, const Real* b, Real* out, int B, int T, int C)
{
    const int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= int64_t(B) * T * C) return;
    out[i] = a[i] + b[i];
}
