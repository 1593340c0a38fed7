/*---
idea   = "Reads 900 elements before the first of an input, and does not use it."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i == 0) (void)*(volatile const float*)(a - 900);
    if (i < B * T * C) out[i] = a[i] + b[i];
}
