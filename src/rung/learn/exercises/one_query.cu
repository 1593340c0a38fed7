/*---
idea   = "One warp computes attention for one query: scores, softmax and output in one loop over the keys."
dtypes = ["f32"]
[define]
HS = "C // NH"
[[launch]]
kernel = "attention"
grid   = ["T", "NH", "B"]
block  = 32
---*/
#include "rung.cuh"

extern "C" __global__ void attention(const float* qkv, float* out, int T, int C, int causal, float scale)
{
    constexpr int COLS = (HS + 31) / 32;  // channels per lane
    const int t = blockIdx.x, nh = blockIdx.y, b = blockIdx.z, lane = threadIdx.x;
    const float* q = qkv + (int64_t(b) * T + t) * 3 * C + nh * HS;
    float o[COLS] = {}, m = -INFINITY, l = 0.0f;
    for (int key = 0; key < (causal ? BLANK_1 : T); key++) {
        const float* k = qkv + (int64_t(b) * T + key) * 3 * C + C + nh * HS;
        float score = 0.0f;
        for (int hs = lane; hs < HS; hs += 32) score += q[hs] * k[hs];
        score = scale * warp_sum(score);
        const float larger = fmaxf(m, score), shrink = BLANK_2, p = expf(score - larger);
        l = shrink * l + p;
        for (int c = 0; c < COLS; c++)
            if (lane + 32 * c < HS) o[c] = BLANK_3;
        m = larger;
    }
    for (int c = 0; c < COLS; c++)
        if (lane + 32 * c < HS) out[(int64_t(b) * T + t) * C + nh * HS + lane + 32 * c] = o[c] / l;
}
