/*---
idea   = "One block per query of a head, and one warp per key: its lanes read the key's channels coalesced, and a running maximum and sum take its value in the same pass. The warps merge at the end."
expect = "The queries of a group read the same keys in blocks of their own: from memory once if they run together, from L2 after that. With one text most multiprocessors have a block, and a long loop."
found  = "75 us for one text of 1,024 keys in bf16, 585 for 8,192."
dtypes = ["f32", "f16", "bf16"]
bind = { q_B = "q_stride_B", q_NH = "q_stride_NH", q_T = "q_stride_T" }
needs = ["B * NH <= 65535"]
[define]
HS = "HS"
[tune]
WARPS = [8, 16, 4, 32]
[[launch]]
kernel = "grouped_cached_attention"
grid   = ["T", "B * NH"]
block  = "32 * WARPS"
shared = "4 * WARPS * (HS + 2)"
---*/
#include "rung.cuh"

constexpr int COLS = (HS + WARP_SIZE - 1) / WARP_SIZE;  // channels per lane

extern "C" __global__ void grouped_cached_attention(const Real* q, const Real* k, const Real* v, const int* past, Real* out,
                                                    int T, int S, int NH, int NKV, int64_t q_B, int64_t q_NH, int64_t q_T,
                                                    int window, float scale)
{
    extern __shared__ float shared[];
    float *ms = shared, *ls = ms + WARPS, *os = ls + WARPS;  // (WARPS), (WARPS), (WARPS, HS)
    const int lane = lane_id(), warp = warp_id(), t = blockIdx.x, b = blockIdx.y / NH, nh = blockIdx.y % NH;
    const int position = past[b] + t;
    const Real* query = q + b * q_B + nh * q_NH + t * q_T;
    const int64_t head = (int64_t(b) * NKV + nh / (NH / NKV)) * S;
    float own[COLS], o[COLS] = {}, m = -INFINITY, l = 0.0f;
    for (int c = 0; c < COLS; c++) {
        const int hs = lane + c * WARP_SIZE;
        own[c] = hs < HS ? scale * to_float(query[hs]) : 0.0f;
    }
    for (int key = max(0, position - window + 1) + warp; key <= position; key += WARPS) {
        const int64_t at = (head + key) * HS + lane;
        float value[COLS], score = 0.0f;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const bool inside = HS % WARP_SIZE == 0 || lane + c * WARP_SIZE < HS;
            score += own[c] * (inside ? to_float(k[at + c * WARP_SIZE]) : 0.0f);
            value[c] = inside ? to_float(v[at + c * WARP_SIZE]) : 0.0f;
        }
        score = warp_sum(score);
        const float largest = fmaxf(m, score), shrink = expf(m - largest), p = expf(score - largest);
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
            const float weight = expf(ms[w] - m);  // 0 for a warp without keys
            total += weight * ls[w];
            sum += weight * os[w * HS + hs];
        }
        out[((int64_t(b) * T + t) * NH + nh) * HS + hs] = from_float<Real>(sum / total);
    }
}
