/*---
idea   = "One block per group: a warp loads a key and its value once, for all queries of the group, whose channels and outputs are in registers."
expect = "A quarter of the loads for groups of four: near the copy rate for many texts. One text has as many blocks as heads of keys, fewer than before, and is slower."
found  = "Slower for one text: 112 us at 1,024 keys in bf16 after 75. It reads a quarter of the bytes, but a quarter of the blocks is left to read them."
dtypes = ["f32", "f16", "bf16"]
bind = { q_B = "q_stride_B", q_NH = "q_stride_NH", q_T = "q_stride_T" }
needs = ["B * NKV <= 65535", "B * NH <= 65535", "NH // NKV <= 16", "NH // NKV * ceil_div(HS, 32) <= 32", "4 * WARPS * (NH // NKV) * (HS + 2) <= 200000"]
[define]
HS = "HS"
GROUP = "NH // NKV"
[tune]
WARPS = [8, 4, 16]
[[launch]]
kernel = "grouped_cached_attention"
grid   = ["T", "B * NKV"]
block  = "32 * WARPS"
shared = "4 * WARPS * (NH // NKV) * (HS + 2)"
---*/
#include "rung.cuh"

constexpr int COLS = (HS + WARP_SIZE - 1) / WARP_SIZE;  // channels per lane

extern "C" __global__ void grouped_cached_attention(const Real* q, const Real* k, const Real* v, const int* past, Real* out,
                                                    int T, int S, int NKV, int64_t q_B, int64_t q_NH, int64_t q_T, int window,
                                                    float scale)
{
    extern __shared__ float shared[];
    float *ms = shared, *ls = ms + WARPS * GROUP, *os = ls + WARPS * GROUP;  // (WARPS, GROUP), the same, (WARPS, GROUP, HS)
    const int lane = lane_id(), warp = warp_id(), t = blockIdx.x, b = blockIdx.y / NKV, kv = blockIdx.y % NKV;
    const int position = past[b] + t;
    const Real* query = q + b * q_B + kv * GROUP * q_NH + t * q_T;
    const int64_t head = int64_t(blockIdx.y) * S;
    float own[GROUP][COLS], o[GROUP][COLS] = {}, m[GROUP], l[GROUP] = {};
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        m[g] = -INFINITY;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const int hs = lane + c * WARP_SIZE;
            own[g][c] = hs < HS ? scale * to_float(query[g * q_NH + hs]) : 0.0f;
        }
    }
    for (int key = max(0, position - window + 1) + warp; key <= position; key += WARPS) {
        const int64_t at = (head + key) * HS + lane;
        float of_key[COLS], value[COLS];
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const bool inside = HS % WARP_SIZE == 0 || lane + c * WARP_SIZE < HS;
            of_key[c] = inside ? to_float(k[at + c * WARP_SIZE]) : 0.0f;
            value[c] = inside ? to_float(v[at + c * WARP_SIZE]) : 0.0f;
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float score = 0.0f;
#pragma unroll
            for (int c = 0; c < COLS; c++) score += own[g][c] * of_key[c];
            score = warp_sum(score);
            const float largest = fmaxf(m[g], score), shrink = expf(m[g] - largest), p = expf(score - largest);
            m[g] = largest;
            l[g] = l[g] * shrink + p;
#pragma unroll
            for (int c = 0; c < COLS; c++) o[g][c] = o[g][c] * shrink + p * value[c];
        }
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        if (lane == 0) ms[warp * GROUP + g] = m[g], ls[warp * GROUP + g] = l[g];
#pragma unroll
        for (int c = 0; c < COLS; c++)
            if (lane + c * WARP_SIZE < HS) os[(warp * GROUP + g) * HS + lane + c * WARP_SIZE] = o[g][c];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < GROUP * HS; i += WARPS * WARP_SIZE) {
        const int g = i / HS, hs = i % HS;
        float largest = -INFINITY, sum = 0.0f, total = 0.0f;
        for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, ms[w * GROUP + g]);
        for (int w = 0; w < WARPS; w++) {
            const float from = ms[w * GROUP + g], weight = expf(from - largest);  // 0 for a warp without keys
            total += weight * ls[w * GROUP + g];
            sum += weight * os[(w * GROUP + g) * HS + hs];
        }
        out[((int64_t(b) * T + t) * NKV * GROUP + kv * GROUP + g) * HS + hs] = from_float<Real>(sum / total);
    }
}
