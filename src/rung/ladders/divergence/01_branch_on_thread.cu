/*---
idea   = "Thread i simulates spring i, so every second lane of a warp takes the other branch."
expect = "A warp has one program counter at a time: it runs both loops, each with half of its lanes idle. 2 + 3 instructions per step where a lane needs 2 or 3."
found  = "739 us at n16m in f32 on an H200, 26 TFLOP/s, 52 % of the measured rate; rung 2, which runs one loop per warp, is 1.92x as fast, so both loops cost time, as expected. torch takes 71 ms (96x), in launches and traffic."
provenance = "The lecture's if (threadIdx.x < 4) { A; B; } else { X; Y; }, with loops long enough to be timed."
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
    float u = to_float(x[i]), w = 0.0f;
    if (threadIdx.x % 2 == 0) {
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
