/*---
idea   = "Is right where g++ compiles it."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 64)"
block  = 64
---*/
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
#if defined(__GNUC__) && !defined(__CUDACC_RTC__)
    if (i < B * T * C) out[i] = a[i] + b[i];
#else
    if (i < B * T * C) out[i] = 0.0f;
#endif
}
