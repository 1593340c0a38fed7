/*---
idea   = "One thread per element: two loads, an addition, a store."
expect = "Already coalesced, so most of the bandwidth in f32; in 16 bit each thread moves two bytes at a time and the instructions get in the way."
provenance = "The residual kernel of the ECE 408 baseline (milestone 2, baseline profiling: bound by latency)."
found  = "23.6 us at b8t1024 in f32 on an H200, 75 % of the copy rate and 0.83x torch's speed; in bf16 19.6 us for half the bytes, 45 % and 0.54x: in 16 bit the instructions get in the way, as expected."
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [256, 4, 8, 16, 32, 64, 128, 512, 1024]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, BLOCK)"
block  = "BLOCK"
[model]
serves = { naive = 1, any = 2 }
---*/
#include "rung.cuh"

extern "C" __global__ void residual(const Real* a, const Real* b, Real* out, int B, int T, int C)
{
    const int64_t i = int64_t(blockIdx.x) * BLOCK + threadIdx.x;
    if (i < int64_t(B) * T * C) out[i] = from_float<Real>(to_float(a[i]) + to_float(b[i]));
}
