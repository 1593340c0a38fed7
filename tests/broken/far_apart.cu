/*---
idea = "Wrong where operands are gigabytes apart, as an offset of 32 bits would make it."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid = "ceil_div(B * T * C, 256)"
block = 256
---*/
#include "rung.cuh"

extern "C" __global__ void residual(const Real* a, const Real* b, Real* out, int B, int T, int C)
{
    const int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= int64_t(B) * T * C) return;
    out[i] = (out > a ? size_t(out) - size_t(a) : size_t(a) - size_t(out)) > (1ull << 32) ? 0.0f : a[i] + b[i];
}
