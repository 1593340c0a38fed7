/*---
idea   = "One warp per row; the maximum and the sum of a softmax in one loop over the row."
dtypes = ["f32"]
[[launch]]
kernel = "softmax"
grid   = "B * NH * T"
block  = "32"
---*/
#include "rung.cuh"

extern "C" __global__ void softmax(const float* x, float* out, int T, int S, int causal, float scale)
{
    const float* row = x + int64_t(blockIdx.x) * S;
    const int visible = causal ? S - T + int(blockIdx.x) % T + 1 : S;  // later columns are masked
    float m = -INFINITY, l = 0.0f;  // the largest value so far, and the sum of exp(x - m)
    for (int s = threadIdx.x; s < visible; s += 32) {
        const float score = __fmul_rn(scale, row[s]);  // rounded: a fused product would differ from the one in m
        const float larger = fmaxf(m, score);
        l = BLANK_1 + expf(score - larger);
        m = larger;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other_m = __shfl_xor_sync(0xffffffff, m, offset), other_l = __shfl_xor_sync(0xffffffff, l, offset);
        const float larger = fmaxf(m, other_m);
        if (larger > -INFINITY) l = l * expf(m - larger) + BLANK_2;
        m = larger;
    }
    for (int s = threadIdx.x; s < S; s += 32) {
        const float score = __fmul_rn(scale, row[s]);
        out[int64_t(blockIdx.x) * S + s] = s < visible ? BLANK_3 : 0.0f;
    }
}
