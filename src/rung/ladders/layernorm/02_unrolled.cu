/*---
idea   = "The same loops, unrolled UNROLL times: fewer branches, and the loads of several iterations can be issued before the first addition."
expect = "More registers, a few percent less time: the branches were not what the warps waited for. The third loop cannot hoist its loads above its stores, since out might be x."
provenance = "ECE 408 milestone 3, Loop unrolling (layernorm 7.28 -> 7.23 ms on an A40 with 60 % fewer branches)."
found  = "Nothing: 583 -> 585 us (1.00x) at b8t1024 in f32 on an H200, and a tie at every other shape and format too. Even the few percent expected were too many; the report had 1.01x on an A40."
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

extern "C" __global__ void layernorm(const Real* x, const Real* weight, const Real* bias, Real* out, int B, int T, int C,
                                     float eps)
{
    const int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= B * T) return;
    x += int64_t(row) * C;
    out += int64_t(row) * C;

    float mean = 0.0f;
#pragma unroll STEPS
    for (int c = 0; c < C; ++c) mean += to_float(x[c]);
    mean /= C;

    float variance = 0.0f;
#pragma unroll STEPS
    for (int c = 0; c < C; ++c) {
        const float centred = to_float(x[c]) - mean;
        variance += centred * centred;
    }
    const float rstd = rsqrtf(variance / C + eps);

#pragma unroll STEPS
    for (int c = 0; c < C; ++c)
        out[c] = from_float<Real>((to_float(x[c]) - mean) * rstd * to_float(weight[c]) + to_float(bias[c]));
}
