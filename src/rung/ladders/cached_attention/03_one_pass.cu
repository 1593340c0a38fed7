/*---
idea   = "One warp per key: its lanes read the key's channels coalesced, and with a running maximum and sum the value is added in the same pass. The warps merge at the end."
expect = "Keys and values are read once, coalesced, and no score goes to memory. Twelve blocks for one text of gpt2 leave most multiprocessors idle."
found  = "2 to 5 times as fast on an H200: 64 texts of 1024 keys take 90 instead of 436 us in bf16 and 105 instead of 342 in float32, 90 % of the copy rate. For one text of 1024 keys 74 us: twelve blocks."
rewrite = "A warp loops over keys with a running softmax, where a block went through the scores three times."
dtypes = ["f32", "f16", "bf16"]

bind = { stride_B = "q_stride_B", stride_NH = "q_stride_NH", stride_T = "q_stride_T" }

[define]
HS = "C // NH"

[tune]
WARPS = [8, 16, 4, 32]

[[launch]]
kernel = "cached_attention"
grid   = ["T", "B * NH"]
block  = "32 * WARPS"
shared = "4 * WARPS * (HS + 2)"
[model]
serves = { tiled = 1 }
---*/
#include "rung.cuh"
#include "window.cuh"

constexpr int COLS = (HS + WARP_SIZE - 1) / WARP_SIZE;  // channels per lane

extern "C" __global__ void cached_attention(const Real* q, const Real* k, const Real* v, const int* past, Real* out, int T, int S,
                                            int NH, int stride_B, int stride_NH, int stride_T, int window, int globals,
                                            float scale)
{
    extern __shared__ float shared[];
    float *ms = shared, *ls = ms + WARPS, *os = ls + WARPS;  // (WARPS), (WARPS), (WARPS, HS)
    int lane = lane_id(), warp = warp_id(), t = blockIdx.x, b = blockIdx.y / NH, nh = blockIdx.y % NH;
    Seen seen(past[b] + t, window, globals);
    const Real* query = q + (int64_t)b * stride_B + nh * stride_NH + (int64_t)t * stride_T;
    int64_t head = (int64_t)blockIdx.y * S;
    float own[COLS], o[COLS] = {}, m = -INFINITY, l = 0.0f;
    for (int c = 0; c < COLS; c++) {
        int hs = lane + c * WARP_SIZE;
        own[c] = hs < HS ? scale * to_float(query[hs]) : 0.0f;
    }
    for (int i = warp; i < seen.count; i += WARPS) {
        int64_t at = (head + seen.key(i)) * HS + lane;
        float value[COLS], score = 0.0f;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            bool inside = HS % WARP_SIZE == 0 || lane + c * WARP_SIZE < HS;
            score += own[c] * (inside ? to_float(k[at + c * WARP_SIZE]) : 0.0f);
            value[c] = inside ? to_float(v[at + c * WARP_SIZE]) : 0.0f;
        }
        score = warp_sum(score);
        float largest = fmaxf(m, score), shrink = expf(m - largest), p = expf(score - largest);
        m = largest;
        l = l * shrink + p;
#pragma unroll
        for (int c = 0; c < COLS; c++) o[c] = o[c] * shrink + p * value[c];
    }
    if (lane == 0) ms[warp] = m, ls[warp] = l;
    for (int c = 0; c < COLS; c++) {
        if (lane + c * WARP_SIZE < HS) os[warp * HS + lane + c * WARP_SIZE] = o[c];
    }
    __syncthreads();
    m = -INFINITY;
    for (int w = 0; w < WARPS; w++) m = fmaxf(m, ms[w]);
    for (int hs = threadIdx.x; hs < HS; hs += WARPS * WARP_SIZE) {
        float sum = 0.0f, total = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            float weight = expf(ms[w] - m);  // 0 for a warp without keys
            total += weight * ls[w];
            sum += weight * os[w * HS + hs];
        }
        out[(((int64_t)b * T + t) * NH + nh) * HS + hs] = from_float<Real>(sum / total);
    }
}
