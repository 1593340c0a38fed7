/*---
idea   = "Hands numbers to a neighbour in another warp without a barrier."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    __shared__ float sums[64];
    sums[threadIdx.x] = i < B * T * C ? a[i] + b[i] : 0.0f;
    const int mirrored = blockIdx.x * 64 + 63 - threadIdx.x;
    if (mirrored < B * T * C) out[mirrored] = sums[63 - threadIdx.x];
}
