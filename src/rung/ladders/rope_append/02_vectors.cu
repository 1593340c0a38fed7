/*---
idea   = "A thread has 16 bytes of each half of a head: the pairs of both vectors are turned in registers, and a head's lanes add their squares by shuffles. Blocks are full whatever the size of a head."
expect = "Sixteen bytes per access and 256 threads per block instead of a warp with 2 bytes each: near the copy rate for prompts. A step stays at one launch's time."
found  = "On an H200 29.9 us for eight prompts of 1,024 tokens in bf16 (rung 1: 242, torch 714), 79 % of the bandwidth; in f32 52.0, 91 %. A step takes 2.1 us, a launch."
dtypes = ["f32", "f16", "bf16"]
needs  = ["interleaved == 0", "HS % (2 * (16 // sizeof_real)) == 0 and 32 % LANES == 0", "B * T * (NH + 2 * NKV) * LANES <= 2000000000"]
[tune]
BLOCK = [256, 128, 512]
[let]
LANES = "HS // (2 * (16 // sizeof_real))"  # per head
[define]
HS    = "HS"
LANES = "LANES"
[[launch]]
kernel = "rope_append"
grid   = "ceil_div(B * T * (NH + 2 * NKV) * LANES, BLOCK)"
block  = "BLOCK"
[model]
serves = { any = 1 }
---*/
#include "rung.cuh"

constexpr int HALF = HS / 2;

extern "C" __global__ void __launch_bounds__(BLOCK)
    rope_append(const Real* __restrict__ qkv, const Real* __restrict__ q_weight, const Real* __restrict__ k_weight,
                const float* __restrict__ cosines, const float* __restrict__ sines, const int* __restrict__ past,
                Real* __restrict__ q, Real* __restrict__ k_cache, Real* __restrict__ v_cache, int B, int T, int NH, int NKV,
                int S, float eps)
{
    const int heads = NH + 2 * NKV, all = B * T * heads, given = (blockIdx.x * BLOCK + threadIdx.x) / LANES;
    const int i = min(given, all - 1), at = threadIdx.x % LANES * VEC;  // lanes beyond the last head repeat it
    const int head = i % heads, token = i / heads, b = token / T, position = past[b] + token % T;
    const Real* in = qkv + int64_t(i) * HS + at;
    const int kept = (head - NH) % NKV;
    Real* to = head < NH ? q + (int64_t(token) * NH + head) * HS
                         : (head < NH + NKV ? k_cache : v_cache) + ((int64_t(b) * NKV + kept) * S + position) * HS;
    Vec16<Real> low = load_vec(in), high = load_vec(in + HALF);
    const Real* weight = head < NH ? q_weight : k_weight;

    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < VEC; j++) squares += to_float(low[j]) * to_float(low[j]) + to_float(high[j]) * to_float(high[j]);
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(ALL_LANES, squares, offset);
    if (head < NH + NKV) {
        const float scale = weight != nullptr ? rsqrtf(squares / HS + eps) : 1.0f;
        const int64_t angle = int64_t(position) * HALF + at;
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            const float a = to_float(low[j]) * scale * (weight != nullptr ? to_float(weight[at + j]) : 1.0f);
            const float c = to_float(high[j]) * scale * (weight != nullptr ? to_float(weight[at + HALF + j]) : 1.0f);
            const float cosine = cosines[angle + j], sine = sines[angle + j];
            low[j] = from_float<Real>(a * cosine - c * sine);
            high[j] = from_float<Real>(c * cosine + a * sine);
        }
    }
    if (given >= all) return;
    store_vec(to + at, low);
    store_vec(to + at + HALF, high);
}
