/*---
idea   = "A softmax that does not overflow: the maximum, the sum, the quotients."
dtypes = ["f32"]
[[launch]]
kernel = "softmax"
grid   = "B * NH * T"
block  = 32
---*/
#include "rung.cuh"

extern "C" __global__ void softmax(const float* x, float* out, int T, int S, int causal, float scale)
{
    const float* row = x + int64_t(blockIdx.x) * S;
    const int t = blockIdx.x % T;
    const int visible = causal ? BLANK_1 : S;  // the last query sees every column
    float m = -INFINITY, l = 0.0f;
    for (int s = threadIdx.x; s < visible; s += 32) m = fmaxf(m, scale * row[s]);
    m = BLANK_2;
    for (int s = threadIdx.x; s < visible; s += 32) l += BLANK_3;
    l = warp_sum(l);
    for (int s = threadIdx.x; s < S; s += 32)
        out[int64_t(blockIdx.x) * S + s] = s < visible ? expf(scale * row[s] - m) / l : 0.0f;
}
