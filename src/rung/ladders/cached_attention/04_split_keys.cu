/*---
idea   = "The keys of a query are divided among SPLITS blocks; a second kernel merges their results."
expect = "One text of gpt2 fills 96 multiprocessors instead of 12: several times faster for long texts, and slower by one launch for short ones and for many texts."
found  = "As expected on an H200: 74 to 12.8 us for one text of 1024 keys in bf16, 10.0 to 5.4 for 128 keys, where the shorter loop outweighs the second launch. 64 texts are slower, 90 to 110 us."
dtypes = ["f32", "f16", "bf16"]

bind = { stride_B = "q_stride_B", stride_NH = "q_stride_NH", stride_T = "q_stride_T" }

# what a block found of its keys: maximum, sum, and the output that these weigh
buffers.parts = { shape = ["B", "NH", "T", "SPLITS", "HS + 2"], dtype = "f32" }

[define]
HS = "C // NH"

[tune]
SPLITS = [8, 4, 16, 32]
WARPS = [8, 16, 4, 32]

[[launch]]
kernel = "cached_attention"
grid   = ["T", "B * NH", "SPLITS"]
block  = "32 * WARPS"
shared = "4 * WARPS * (HS + 2)"

[[launch]]
kernel = "merge"
grid   = ["T", "B * NH"]
block  = "round_up(HS, 32)"
[model]
serves = { flash = 1 }
---*/
#include "rung.cuh"
#include "window.cuh"

constexpr int COLS = (HS + WARP_SIZE - 1) / WARP_SIZE;  // channels per lane

extern "C" __global__ void cached_attention(const Real* q, const Real* k, const Real* v, const int* past, float* parts, int T,
                                            int S, int NH, int stride_B, int stride_NH, int stride_T, int window, int globals,
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
    int share = ceil_div(seen.count, SPLITS), first = blockIdx.z * share, end = min(seen.count, first + share);
    for (int i = first + warp; i < end; i += WARPS) {
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
    float* part = parts + (((int64_t)blockIdx.y * T + t) * SPLITS + blockIdx.z) * (HS + 2);
    for (int hs = threadIdx.x; hs < HS; hs += WARPS * WARP_SIZE) {
        float sum = 0.0f, total = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            float weight = ms[w] == -INFINITY ? 0.0f : expf(ms[w] - m);  // 0 for a warp without keys
            total += weight * ls[w];
            sum += weight * os[w * HS + hs];
        }
        part[2 + hs] = sum;
        if (hs == 0) part[0] = m, part[1] = total;
    }
}

extern "C" __global__ void merge(const float* parts, Real* out, int T, int NH)
{
    int hs = threadIdx.x, t = blockIdx.x, b = blockIdx.y / NH, nh = blockIdx.y % NH;
    if (hs >= HS) return;
    const float* part = parts + ((int64_t)blockIdx.y * T + t) * SPLITS * (HS + 2);
    float m = -INFINITY, sum = 0.0f, total = 0.0f;
    for (int i = 0; i < SPLITS; i++) m = fmaxf(m, part[i * (HS + 2)]);
    for (int i = 0; i < SPLITS; i++, part += HS + 2) {
        float weight = expf(part[0] - m);  // 0 for a block without keys
        total += weight * part[1];
        sum += weight * part[2 + hs];
    }
    out[(((int64_t)b * T + t) * NH + nh) * HS + hs] = from_float<Real>(sum / total);
}
