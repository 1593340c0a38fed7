/*---
idea   = "The gradient of a softmax: y (dy - the sum of y dy), a warp per row."
dtypes = ["f32"]
[[launch]]
kernel = "backward"
grid   = "B"
block  = 32
---*/
#include "rung.cuh"

extern "C" __global__ void backward(const float* x, const float* dy, float* out, int N)
{
    const int64_t first = int64_t(blockIdx.x) * N;
    float m = -INFINITY, l = 0.0f, dot = 0.0f;
    for (int n = threadIdx.x; n < N; n += 32) m = fmaxf(m, x[first + n]);
    m = warp_max(m);
    for (int n = threadIdx.x; n < N; n += 32) {
        const float power = expf(x[first + n] - m);
        l += power;
        dot += BLANK_1;
    }
    l = warp_sum(l);
    dot = BLANK_2;  // the sum of y dy
    for (int n = threadIdx.x; n < N; n += 32) {
        const float y = expf(x[first + n] - m) / l;
        out[first + n] = BLANK_3;
    }
}
