/*---
idea   = "Springs of two kinds: even ones swing freely, odd ones have friction; a warp should have one kind."
dtypes = ["f32"]
[[launch]]
kernel = "swing"
grid   = "ceil_div(N, 64)"
block  = 64
---*/
#include "rung.cuh"

extern "C" __global__ void swing(const float* x, float* out, int N, int STEPS)
{
    const int thread = blockIdx.x * 64 + threadIdx.x, even = (N + 1) / 2;  // there are so many even springs
    if (thread >= N) return;
    const int i = BLANK_1;
    float u = x[i], w = 0.0f;
    if (i % 2 == 0) {
        for (int step = 0; step < STEPS; step++) w -= u / 32.0f, u += w / 4.0f;
    } else {
        for (int step = 0; step < STEPS; step++) w = 127.0f / 128.0f * w - u / 8.0f, u += w / 4.0f;
    }
    out[i] = u;
}
