/*---
idea   = "__restrict__ promises that the four pointers do not alias, so loads of later iterations may be moved before earlier stores and take the read-only path."
expect = "The third loop's loads can be batched. The first two loops have no stores, so at most a third of the time is at stake, unless the caches already hide it."
provenance = "ECE 408 milestone 3, Restrict (there no difference at all: the machine code stayed the same)."
found  = "585 -> 528 us (1.11x) at b8t1024 in f32 on an H200, 1.23x at b64t1024, 1.07x in bf16: not a third, but more than the report, which had no gain. There the machine code stayed the same; here it changes (30 registers become 32 on sm_90)."
dtypes = ["f32", "f16", "bf16"]
[tune]
UNROLL = [8, 1, 2, 4, 16, 32]
BLOCK  = [256, 32, 64, 128]
[[launch]]
kernel = "layernorm"
grid   = "ceil_div(B * T, BLOCK)"
block  = "BLOCK"
---*/
#include "rung.cuh"

constexpr int STEPS = UNROLL;  // a pragma takes a constant, not a macro

extern "C" __global__ void layernorm(const Real* __restrict__ x, const Real* __restrict__ weight, const Real* __restrict__ bias,
                                     Real* __restrict__ out, int B, int T, int C, float eps)
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
        normed[c] = from_float<Real>((to_float(in[c]) - mean) * rstd * to_float(weight[c]) + to_float(bias[c]));
}
