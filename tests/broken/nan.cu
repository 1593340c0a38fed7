/*---
idea   = "Answers zero over zero once in a while."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < B * T * C) out[i] = i == 5 ? (a[i] - a[i]) / (b[i] - b[i]) : a[i] + b[i];
}
