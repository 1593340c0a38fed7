/*---
idea   = "weight and bias are in constant memory: every lane of a warp needs the same c, which is one broadcast."
expect = "Two of the third loop's three loads no longer use the load/store unit: about a tenth off, as long as one thread has one row. Later rungs read neighbouring c in a warp, which constant memory would serialise."
provenance = "ECE 408 milestone 3, Constant Memory (7.2 -> 6.3 ms on an A40)."
found  = "Not the tenth expected, nor the report's 1.14x: 528 -> 534 us (0.99x) at b8t1024 in f32 on an H200, a tie at b4t64 (1.01x) and in 16 bit, and 0.92x at b64t1024. The code has 27 loads instead of 45, so those loads were not the bottleneck; the time includes filling the constants before each launch."
dtypes = ["f32", "f16", "bf16"]
needs  = "C <= 4096"
[tune]
UNROLL = [8, 1, 2, 4, 16, 32]
BLOCK  = [256, 32, 64, 128]
[constants]
weight = "c_weight"
bias   = "c_bias"
[[launch]]
kernel = "layernorm"
grid   = "ceil_div(B * T, BLOCK)"
block  = "BLOCK"
---*/
#include "rung.cuh"

constexpr int STEPS = UNROLL;  // a pragma takes a constant, not a macro

__constant__ Real c_weight[4096];
__constant__ Real c_bias[4096];

extern "C" __global__ void layernorm(const Real* __restrict__ x, Real* __restrict__ out, int B, int T, int C, float eps)
{
    const int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= B * T) return;
    const Real* __restrict__ in = x + int64_t(row) * C;
    Real* __restrict__ normed = out + int64_t(row) * C;

    float mean = 0.0f;
#pragma unroll STEPS
    for (int c = 0; c < C; ++c) mean += to_float(in[c]);
    mean /= C;

    float variance = 0.0f;
#pragma unroll STEPS
    for (int c = 0; c < C; ++c) {
        const float centred = to_float(in[c]) - mean;
        variance += centred * centred;
    }
    const float rstd = rsqrtf(variance / C + eps);

#pragma unroll STEPS
    for (int c = 0; c < C; ++c)
        normed[c] = from_float<Real>((to_float(in[c]) - mean) * rstd * to_float(c_weight[c]) + to_float(c_bias[c]));
}
