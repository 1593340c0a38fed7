/*---
idea   = "Rounds every sum to half precision on the way: close, and not close enough."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
#include <cuda_fp16.h>
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < B * T * C) out[i] = __half2float(__float2half(a[i] + b[i]));
}
