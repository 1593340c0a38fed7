/*---
idea   = "One thread per element: the bias of its column is added and GELU applied before the only store."
expect = "One launch and one round trip through memory fewer than separate bias and GELU kernels: close to GELU's time alone, since tanhf dominates."
found  = "1.4 times torch's two kernels at 8 x 1024 rows on an H200, 86 against 123 us, but three times gelu's fastest rung: one element per thread moves only 55 % of what a copy does."
provenance = "The prepare-out kernel fused with GELU of ECE 408, milestone 3 (fused kernels, configuration sweep)."
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [256, 4, 8, 16, 32, 64, 128, 512, 1024]
[[launch]]
kernel = "add_bias_gelu"
grid   = "ceil_div(B * T * OC, BLOCK)"
block  = "BLOCK"
---*/
#include "rung.cuh"

__device__ float gelu_tanh(float x)
{
    const float SQRT_2_OVER_PI = 0.7978845608028654f;
    return 0.5f * x * (1.0f + tanhf(SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)));
}

extern "C" __global__ void add_bias_gelu(const Real* x, const Real* bias, Real* out, int B, int T, int OC)
{
    const int64_t i = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (i < int64_t(B) * T * OC) out[i] = from_float<Real>(gelu_tanh(to_float(x[i]) + to_float(bias[i % OC])));
}
