/*---
idea   = "A spring without friction keeps all of its speed: the branch becomes a factor, selected once, and there is one loop for all."
expect = "3 instructions per step for every lane: faster than the divergent warp (5), a little slower than uniform warps (2 or 3), and the accesses stay coalesced."
found  = "Much slower: 385 -> 676 us (0.57x) at n16m in f32 on an H200, 1.09x the divergent warp's speed, 105x torch's. The code for sm_90 has 3 instructions per step, as planned, so their number is not the cause; inferred, not measured: the factors come from registers, where the branches have constants in the instruction, and such instructions issue more slowly."
provenance = "Own; the predicated form of the lecture's example."
from   = "divergence/1"
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [256, 128, 512]
[[launch]]
kernel = "swing"
grid   = "ceil_div(N, BLOCK)"
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void swing(const Real* x, Real* out, int N, int STEPS)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;
    const bool odd = i % 2;
    const float spring = odd ? -0.125f : -0.03125f;
    const float kept = odd ? 0.9921875f : 1.0f;
    float u = to_float(x[i]), w = 0.0f;
    for (int s = 0; s < STEPS; ++s) {
        w = fmaf(spring, u, kept * w);
        u = fmaf(0.25f, w, u);
    }
    out[i] = from_float<Real>(u);
}
