/*---
idea   = "One element per thread; the same source is used for f32, f16 and bf16, and moves 8 or 4 bytes per comparison."
expect = "In f32 near the copy bandwidth. In f16 and bf16 the bytes halve but the instructions do not: less than twice as fast, since 2-byte loads keep too little in flight."
found  = "Not near the copy bandwidth: 201 us at n64m in f32 on an H200 is 63 % of it, 0.64x torch's speed. 176 us in f16, only 1.14x as fast for half the bytes, 36 % and 0.39x torch's: less than twice, as expected."
provenance = "The lecture's arithmetic intensity of ReLU in float 32 and float 16."
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [256, 128, 512, 1024]
[[launch]]
kernel = "relu"
grid   = "ceil_div(N, BLOCK)"
block  = "BLOCK"
[model]
serves = { naive = 1, any = 2 }
---*/
#include "rung.cuh"

extern "C" __global__ void relu(const Real* x, Real* out, int N)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;
    const float value = to_float(x[i]);
    out[i] = from_float<Real>(value < 0.0f ? 0.0f : value);  // so that a NaN stays one
}
