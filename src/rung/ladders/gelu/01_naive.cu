/*---
idea   = "One thread per element, the formula as written, with tanhf."
expect = "Coalesced, so f32 comes near copy speed; in 16 bit the loads are two bytes each and tanhf's twenty-odd instructions start to matter."
provenance = "The GELU kernel of the ECE 408 baseline (milestone 2, baseline profiling)."
found  = "Not near copy speed: 80.7 us at b8t1024 in f32 on an H200 is 58 % of it, and 73.0 us in bf16 32 %, half the bytes in nearly the same time. It is bound by instructions, not by bytes: 0.61x torch's speed, 0.41x in bf16."
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [256, 4, 8, 16, 32, 64, 128, 512, 1024]
[[launch]]
kernel = "gelu"
grid   = "ceil_div(B * T * C, BLOCK)"
block  = "BLOCK"
[model]
serves = { naive = 1, any = 2 }
---*/
#include "rung.cuh"

__device__ float gelu_tanh(float x)
{
    const float SQRT_2_OVER_PI = 0.7978845608028654f;
    return 0.5f * x * (1.0f + tanhf(SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)));
}

extern "C" __global__ void gelu(const Real* x, Real* out, int B, int T, int C)
{
    const int64_t i = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (i < int64_t(B) * T * C) out[i] = from_float<Real>(gelu_tanh(to_float(x[i])));
}
