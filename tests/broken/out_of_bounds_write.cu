/*---
idea   = "Forgets the bound, so the last block writes beyond the tensor."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    const int last = B * T * C - 1;
    out[i] = a[i < last ? i : last] + b[i < last ? i : last];
}
