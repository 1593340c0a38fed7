/*---
idea   = "Clamps at 20,000."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < B * T * C) out[i] = fminf(fmaxf(a[i] + b[i], -20000.0f), 20000.0f);
}
