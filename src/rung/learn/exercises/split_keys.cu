/*---
idea   = "Eight warps share the keys of a query; each has a maximum, a sum and an output, which are merged at the end."
dtypes = ["f32"]
[define]
HS = "C // NH"
[bind]
stride_B = "q_stride_B"
stride_NH = "q_stride_NH"
stride_T = "q_stride_T"
[[launch]]
kernel = "cached_attention"
grid   = ["T", "B * NH"]
block  = 256
shared = "4 * 8 * (HS + 2)"
---*/
#include "rung.cuh"
#include "window.cuh"

extern "C" __global__ void cached_attention(const float* q, const float* k, const float* v, const int* past, float* out, int T,
                                            int S, int NH, int stride_B, int stride_NH, int stride_T, int window, int globals,
                                            float scale)
{
    extern __shared__ float shared[];
    float *ms = shared, *ls = ms + 8, *os = ls + 8;  // (8), (8), (8, HS)
    constexpr int COLS = (HS + 31) / 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = blockIdx.x, b = blockIdx.y / NH, nh = blockIdx.y % NH;
    const Seen seen(past[b] + t, window, globals);  // which keys the query attends to
    const float* query = q + int64_t(b) * stride_B + nh * stride_NH + int64_t(t) * stride_T;
    const int64_t head = int64_t(blockIdx.y) * S;
    float o[COLS] = {}, m = -INFINITY, l = 0.0f;
    for (int i = BLANK_1; i < seen.count; i += 8) {
        const float *key = k + (head + seen.key(i)) * HS, *value = v + (head + seen.key(i)) * HS;
        float score = 0.0f;
        for (int hs = lane; hs < HS; hs += 32) score += query[hs] * key[hs];
        score = scale * warp_sum(score);
        const float larger = fmaxf(m, score), shrink = expf(m - larger), p = expf(score - larger);
        l = shrink * l + p;
        for (int c = 0; c < COLS; c++)
            if (lane + 32 * c < HS) o[c] = shrink * o[c] + p * value[lane + 32 * c];
        m = larger;
    }
    if (lane == 0) ms[warp] = m, ls[warp] = l;
    for (int c = 0; c < COLS; c++)
        if (lane + 32 * c < HS) os[warp * HS + lane + 32 * c] = o[c];
    __syncthreads();
    float all_m = -INFINITY, all_l = 0.0f;
    for (int w = 0; w < 8; w++) all_m = fmaxf(all_m, ms[w]);
    for (int w = 0; w < 8; w++) all_l += BLANK_2;
    for (int hs = threadIdx.x; hs < HS; hs += 256) {
        float sum = 0.0f;
        for (int w = 0; w < 8; w++) sum += BLANK_3;
        out[((int64_t(b) * T + t) * NH + nh) * HS + hs] = sum / all_l;
    }
}
