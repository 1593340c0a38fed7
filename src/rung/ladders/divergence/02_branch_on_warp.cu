/*---
idea   = "The same branch, but warps alternate instead of lanes: one takes the even springs of 64 neighbours, the next the odd ones."
expect = "All lanes of a warp take the same branch: half the time. The stride of two in memory costs nothing next to that much arithmetic."
found  = "Half the time, as expected: 739 -> 385 us (1.92x) at n16m in f32 on an H200, 50 TFLOP/s, 99 % of the measured rate, 185x torch's speed. The stride in memory does not show."
provenance = "The attention milestone keeps its strides at multiples of 32 for this reason."
dtypes = ["f32", "f16", "bf16"]
needs  = "BLOCK % 64 == 0"
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
    const int pair = warp_id() / 2, odd = warp_id() % 2;
    const int i = blockIdx.x * BLOCK + pair * 64 + lane_id() * 2 + odd;
    if (i >= N) return;
    float u = to_float(x[i]), w = 0.0f;
    if (odd == 0) {
        for (int s = 0; s < STEPS; ++s) {
            w = fmaf(-0.03125f, u, w);
            u = fmaf(0.25f, w, u);
        }
    } else {
        for (int s = 0; s < STEPS; ++s) {
            w = fmaf(-0.125f, u, 0.9921875f * w);
            u = fmaf(0.25f, w, u);
        }
    }
    out[i] = from_float<Real>(u);
}
