/*---
idea   = "Two launches: one block per head of the new token turns it and stores it, as in rope_append; then one block per query reads every key, one warp per key, and keeps a running maximum."
expect = "Two launches' time for short contexts. A group's queries read the same keys in blocks of their own, and one text's heads occupy a quarter of the multiprocessors."
found  = "On an H200 19.0 us for SmolLM2's heads with 256 keys in bf16, 72.8 for Llama-3.2-1B's with 1,024 and 561 with 8,192: a block per query, and a quarter of the multiprocessors at work."
dtypes = ["f32", "f16", "bf16"]
needs  = ["B <= 65535"]
[tune]
WARPS = [8, 4, 16]
[define]
HS = "HS"
[buffers.q]
shape = ["B", "NH", "HS"]
dtype = "f32"
[[launch]]
kernel = "turn"
grid   = ["NH + 2 * NKV", "B"]
block  = 32
[[launch]]
kernel = "attend"
grid   = ["NH", "B"]
block  = "32 * WARPS"
shared = "4 * WARPS * (HS + 2)"
[model]
serves = { any = 2 }
---*/
#include "rung.cuh"

constexpr int HALF = HS / 2, COLS = (HS + WARP_SIZE - 1) / WARP_SIZE;  // channels per lane

extern "C" __global__ void turn(const Real* qkv, const Real* q_weight, const Real* k_weight, const float* cosines,
                                const float* sines, const int* past, float* q, Real* k_cache, Real* v_cache, int NH, int NKV,
                                int S, int interleaved, float eps)
{
    const int head = blockIdx.x, b = blockIdx.y, lane = lane_id(), position = past[b], kept = (head - NH) % NKV;
    const Real* in = qkv + (size_t(b) * (NH + 2 * NKV) + head) * HS;
    const size_t place = ((size_t(b) * NKV + kept) * S + position) * HS;
    if (head >= NH + NKV) {
        for (int c = lane; c < HS; c += WARP_SIZE) v_cache[place + c] = in[c];
        return;
    }
    const Real* weight = head < NH ? q_weight : k_weight;
    float scale = 1.0f, squares = 0.0f;
    if (weight != nullptr) {
        for (int c = lane; c < HS; c += WARP_SIZE) squares += to_float(in[c]) * to_float(in[c]);
        scale = rsqrtf(warp_sum(squares) / HS + eps);
    }
    for (int pair = lane; pair < HALF; pair += WARP_SIZE) {
        const int first = interleaved ? 2 * pair : pair, second = interleaved ? 2 * pair + 1 : pair + HALF;
        const float a = to_float(in[first]) * scale * (weight != nullptr ? to_float(weight[first]) : 1.0f);
        const float c = to_float(in[second]) * scale * (weight != nullptr ? to_float(weight[second]) : 1.0f);
        const float cosine = cosines[size_t(position) * HALF + pair], sine = sines[size_t(position) * HALF + pair];
        const float low = a * cosine - c * sine, high = c * cosine + a * sine;
        if (head < NH) {
            float* to = q + (size_t(b) * NH + head) * HS;
            to[first] = low, to[second] = high;
        } else {
            k_cache[place + first] = from_float<Real>(low), k_cache[place + second] = from_float<Real>(high);
        }
    }
}

extern "C" __global__ void attend(const float* q, const Real* k_cache, const Real* v_cache, const int* past, Real* out, int NH,
                                  int NKV, int S, int window, float scale)
{
    extern __shared__ float shared[];
    float *ms = shared, *ls = ms + WARPS, *os = ls + WARPS;  // (WARPS), (WARPS), (WARPS, HS)
    const int lane = lane_id(), warp = warp_id(), nh = blockIdx.x, b = blockIdx.y, position = past[b];
    const size_t head = (size_t(b) * NKV + nh / (NH / NKV)) * S;
    float own[COLS], o[COLS] = {}, m = -INFINITY, l = 0.0f;
    for (int c = 0; c < COLS; c++) {
        const int hs = lane + c * WARP_SIZE;
        own[c] = hs < HS ? scale * q[(size_t(b) * NH + nh) * HS + hs] : 0.0f;
    }
    for (int key = max(0, position - window + 1) + warp; key <= position; key += WARPS) {
        const size_t at = (head + key) * HS + lane;
        float value[COLS], score = 0.0f;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const bool inside = HS % WARP_SIZE == 0 || lane + c * WARP_SIZE < HS;
            score += own[c] * (inside ? to_float(k_cache[at + c * WARP_SIZE]) : 0.0f);
            value[c] = inside ? to_float(v_cache[at + c * WARP_SIZE]) : 0.0f;
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
        out[(size_t(b) * NH + nh) * HS + hs] = from_float<Real>(sum / total);
    }
}
