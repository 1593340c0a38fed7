/*---
idea   = "Writes before the start when the last block is the first to run."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
__device__ int begun;

extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (threadIdx.x == 0 && blockIdx.x > 0 && atomicAdd(&begun, 0) == 0) out[-1] = 1.0f;
    if (i == 0) atomicExch(&begun, 1);
    if (i < B * T * C) out[i] = a[i] + b[i];
    if (i == B * T * C - 1) atomicExch(&begun, 0);
}
