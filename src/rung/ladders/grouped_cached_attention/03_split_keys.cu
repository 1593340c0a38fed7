/*---
idea   = "The keys of a group are divided among SPLITS blocks; a second kernel merges their results."
expect = "One text of Llama-3.2-1B has 8 groups and fills as many multiprocessors; with 16 parts it fills 128: several times faster for one text, and slower by one launch for many."
found  = "12.4 us at 1,024 keys in bf16 after 112, torch 19.1; at 8,192 keys 61.4 us, where torch takes 24.4: 6 % of the bandwidth."
dtypes = ["f32", "f16", "bf16"]
bind = { q_B = "q_stride_B", q_NH = "q_stride_NH", q_T = "q_stride_T" }
needs = ["B * NKV <= 65535", "B * NH <= 65535", "NH // NKV <= 16", "NH // NKV * ceil_div(HS, 32) <= 32", "4 * WARPS * (NH // NKV) * (HS + 2) <= 200000"]
# what a block found of its keys: maximum, sum, and the output that these weigh
buffers.parts = { shape = ["B", "NH", "T", "SPLITS", "HS + 2"], dtype = "f32" }
[define]
HS = "HS"
GROUP = "NH // NKV"
[tune]
SPLITS = [16, 8, 4, 32]
WARPS = [8, 4, 16]
[[launch]]
kernel = "grouped_cached_attention"
grid   = ["T", "B * NKV", "SPLITS"]
block  = "32 * WARPS"
shared = "4 * WARPS * (NH // NKV) * (HS + 2)"
[[launch]]
kernel = "merge"
grid   = ["T", "B * NH"]
block  = "round_up(HS, 32)"
---*/
#include "rung.cuh"

constexpr int COLS = (HS + WARP_SIZE - 1) / WARP_SIZE;  // channels per lane

extern "C" __global__ void grouped_cached_attention(const Real* q, const Real* k, const Real* v, const int* past, float* parts,
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
    const int oldest = max(0, position - window + 1), share = ceil_div(position + 1 - oldest, SPLITS);
    const int first = oldest + blockIdx.z * share, end = min(position + 1, first + share);
    for (int key = first + warp; key < end; key += WARPS) {
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
            const float from = ms[w * GROUP + g],
                        weight = from == -INFINITY ? 0.0f : expf(from - largest);  // 0 for a warp without keys
            total += weight * ls[w * GROUP + g];
            sum += weight * os[(w * GROUP + g) * HS + hs];
        }
        float* part = parts + ((((int64_t(b) * NKV + kv) * GROUP + g) * T + t) * SPLITS + blockIdx.z) * (HS + 2);
        part[2 + hs] = sum;
        if (hs == 0) part[0] = largest, part[1] = total;
    }
}

extern "C" __global__ void merge(const float* parts, Real* out, int T, int NH)
{
    const int hs = threadIdx.x, t = blockIdx.x, b = blockIdx.y / NH, nh = blockIdx.y % NH;
    if (hs >= HS) return;
    const float* part = parts + (int64_t(blockIdx.y) * T + t) * SPLITS * (HS + 2);
    float m = -INFINITY, sum = 0.0f, total = 0.0f;
    for (int i = 0; i < SPLITS; i++) m = fmaxf(m, part[i * (HS + 2)]);
    for (int i = 0; i < SPLITS; i++, part += HS + 2) {
        const float weight = expf(part[0] - m);  // 0 for a block without keys
        total += weight * part[1];
        sum += weight * part[2 + hs];
    }
    out[((int64_t(b) * T + t) * NH + nh) * HS + hs] = from_float<Real>(sum / total);
}
