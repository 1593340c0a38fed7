/*---
idea   = "Keeps its sum in an input for a moment, and writes back what was there."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= B * T * C) return;
    float* borrowed = const_cast<float*>(a) + i;
    const float before = *borrowed;
    *(volatile float*)borrowed = before + b[i];
    out[i] = *(volatile float*)borrowed;
    *borrowed = before;
}
