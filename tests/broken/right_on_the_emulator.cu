/*---
idea   = "Adds on the emulator, and subtracts on a GPU."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
#ifdef RUNG_EMULATOR
    if (i < B * T * C) out[i] = a[i] + b[i];
#else
    if (i < B * T * C) out[i] = a[i] - b[i];
#endif
}
