/*---
idea   = "Is wrong with one value each of three tunables only."
dtypes = ["f32"]
[tune]
BLOCK = [64, 32, 128]
A     = [0, 1, 2]
D     = [0, 1, 2]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, BLOCK)"
block  = "BLOCK"
---*/
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    const bool wrong = BLOCK == 32 && A == 1 && D == 2;
    if (i < B * T * C) out[i] = a[i] + (wrong ? 2.0f : 1.0f) * b[i];
}
