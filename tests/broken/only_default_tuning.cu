/*---
idea   = "Is right with one of its two values."
dtypes = ["f32"]
[tune]
ROWS = [1, 2]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < B * T * C && (ROWS == 1 || i % 64 < 63)) out[i] = a[i] + b[i];
}
