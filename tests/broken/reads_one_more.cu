/*---
idea   = "Keeps a maximum over one element too many."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < B * T * C) out[i] = fmaxf(a[i] + b[i], -fabsf(a[i + 1]) * 1e30f);
}
