/*---
idea   = "Hands sums to a neighbour through shared memory without a barrier."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    __shared__ float sums[64];
    const int start = blockIdx.x * 64;
    const int mirrored = 63 - threadIdx.x;
    const int i = start + threadIdx.x;
    if (i < B * T * C) sums[threadIdx.x] = a[i] + b[i];
    if (start + mirrored < B * T * C) out[start + mirrored] = sums[mirrored];
}
