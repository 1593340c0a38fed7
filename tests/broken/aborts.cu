/*---
idea   = "Ends the process by a signal."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
extern "C" void abort();

extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i == 0) abort();
    if (i < B * T * C) out[i] = a[i] + b[i];
}
