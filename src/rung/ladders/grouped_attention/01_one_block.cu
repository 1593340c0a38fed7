/*---
idea   = "One block per query of a head, and one warp per key: lanes read a key's channels coalesced, and a running maximum and sum take its value in the same pass."
expect = "No score goes to memory, but each query reads all of its keys by itself, from L2: T / 2 times the bytes that are needed, and NH / NKV times those again."
found  = "28.6 ms for b8t1024 in bf16, as in f32: the number of bytes does not decide."
dtypes = ["f32", "f16", "bf16"]
bind = { k_B = "k_stride_B", k_NKV = "k_stride_NKV", k_T = "k_stride_T", q_B = "q_stride_B", q_NH = "q_stride_NH", q_T = "q_stride_T" }
needs = ["v_stride_B == k_stride_B and v_stride_NKV == k_stride_NKV and v_stride_T == k_stride_T", "B <= 65535"]
[define]
HS = "HS"
[tune]
WARPS = [4, 8, 2]
[[launch]]
kernel = "grouped_attention"
grid   = ["T", "NH", "B"]
block  = "32 * WARPS"
---*/
#include "rung.cuh"

constexpr int COLS = (HS + WARP_SIZE - 1) / WARP_SIZE;  // channels per lane

extern "C" __global__ void grouped_attention(const Real* q, const Real* k, const Real* v, Real* out, int T, int NH, int NKV,
                                             int64_t q_B, int64_t q_NH, int64_t q_T, int64_t k_B, int64_t k_NKV, int64_t k_T,
                                             int window, float scale)
{
    __shared__ float ms[WARPS], ls[WARPS], os[WARPS][HS];
    const int lane = lane_id(), warp = warp_id(), t = blockIdx.x, nh = blockIdx.y, b = blockIdx.z;
    const Real* query = q + b * q_B + nh * q_NH + t * q_T;
    const int64_t head = b * k_B + nh / (NH / NKV) * k_NKV;
    float own[COLS], o[COLS] = {}, m = -INFINITY, l = 0.0f;
    for (int c = 0; c < COLS; c++) {
        const int hs = lane + c * WARP_SIZE;
        own[c] = hs < HS ? scale * to_float(query[hs]) : 0.0f;
    }
    for (int key = max(0, t - window + 1) + warp; key <= t; key += WARPS) {
        const int64_t at = head + key * k_T + lane;
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
        if (lane + c * WARP_SIZE < HS) os[warp][lane + c * WARP_SIZE] = o[c];
    }
    __syncthreads();
    m = -INFINITY;
    for (int w = 0; w < WARPS; w++) m = fmaxf(m, ms[w]);
    for (int hs = threadIdx.x; hs < HS; hs += WARPS * WARP_SIZE) {
        float sum = 0.0f, total = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            const float weight = expf(ms[w] - m);  // 0 for a warp without keys
            total += weight * ls[w];
            sum += weight * os[w][hs];
        }
        out[((int64_t(b) * T + t) * NH + nh) * HS + hs] = from_float<Real>(sum / total);
    }
}
