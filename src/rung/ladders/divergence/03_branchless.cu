/*---
idea   = "A spring without friction keeps all of its speed: the rule becomes data, selected once, and there is one loop for all."
expect = "3 instructions a step for every lane: ahead of the divided warp (5), a little behind warps that agree (2 or 3), and the accesses stay coalesced."
found  = ""
provenance = "Own; the predicated form of the lecture's example."
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [256, 128, 512]
[[launch]]
kernel = "swing"
grid   = "ceil_div(N, BLOCK)"
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void swing(const Real* x, Real* out, int N, int STEPS) {
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
