/*---
idea   = "For many texts: scores and their products with values on tensor cores, from keys and values that go from memory straight into the registers that the products read; the queries' and the probabilities' rounding errors are eight further rows of the same products."
expect = "Rung 2 spends some 30 instructions of a lane on a key and a query, and is limited by them with four queries a group: 61 us for 256 texts of Llama-3.2-1B, whose keys and values take 34 us of an H100's memory. Here sixteen keys cost a warp about 100."
found  = "On an H100 43.8 us instead of 61.2 for 256 texts of Llama-3.2-1B with 192 keys (2.3 TB/s), 14.8 instead of 18.4 for 64; of Qwen3-0.6B 84.9 instead of 87.9: its 231 registers leave eight warps on a multiprocessor. On an H200 24.7 us for 64 texts with 256 keys and heads of 128 (rung 2: 41.2). Blocks of two warps, and a slower ring in shared memory: docs/notes/hopper-trials-2026-11.md."
rewrite = "Products of fragments replace sums over lanes, and nothing of the loop over keys stays."
dtypes = ["bf16", "f16"]
needs  = ["sm >= 80", "HS == 64 or HS == 128", "NH // NKV <= 8", "NKV <= 65535 and B <= 65535"]
[tune]
WARPS = [4, 2, 8]
[define]
HS    = "HS"
GROUP = "NH // NKV"
[[launch]]
kernel = "rope_cached_attention"
grid   = ["NKV", "B"]
block  = "32 * WARPS"
pdl    = true
[model]
serves = { step = "1 if rows >= 32 else 0" }
untuned = [{ when = "B * NKV >= 768 or HS == 128", WARPS = 2 }]
---*/
#include "turned_heads.cuh"

constexpr int CHUNKS = HS / 32, TILES = HS / 8, BANDS = HS / 64;  // of a key's 32 channels; of 8 channels; of 64

// Two halves of words: the low ones, or the high ones.
__device__ __forceinline__ uint32_t halves_of(uint32_t a, uint32_t b, int high)
{
    return __byte_perm(a, b, high ? 0x7632 : 0x5410);
}

__device__ __forceinline__ uint32_t word_of(const uint4& bits, int i)
{
    return i == 0 ? bits.x : i == 1 ? bits.y : i == 2 ? bits.z : bits.w;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rope_cached_attention(const Real* qkv, const Real* q_weight, const Real* k_weight, const float* cosines, const float* sines,
                          const int* past, Real* k_cache, Real* v_cache, Real* out, int NH, int NKV, int S, int interleaved,
                          float eps, float scale, int window)
{
    __shared__ __align__(16) float qs[GROUP][HS];
    __shared__ __align__(16) Real fresh[2][HS];  // the new key and value
    __shared__ float os[WARPS][GROUP][HS], ms[WARPS][GROUP], ls[WARPS][GROUP];
    const int lane = lane_id(), warp = warp_id(), g = lane / 4, t = lane % 4, kv = blockIdx.x, b = blockIdx.y;
    const int position = past[b], oldest = max(0, position - window + 1);
    const size_t head = (size_t(b) * NKV + kv) * S;
    pdl_wait();
    pdl_launch_dependents();

    // Keys from + g and from + 8 + g, channels 32 c + 8 t to + 7, are operands of two products each; values of keys 2 t and the
    // next, and of those 8 further, channels 64 c + 8 g to + 7. The order of channels in a sum is free, and so is that of outputs.
    uint4 k[2][CHUNKS], v[4][BANDS];
    auto request_keys = [&](int from) {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const int key = from + 8 * i + g;
                k[i][c] = make_uint4(0, 0, 0, 0);
                if (key < position)
                    k[i][c] = __ldcg(reinterpret_cast<const uint4*>(k_cache + (head + key) * HS + c * 32 + t * 8));
            }
    };
    auto request_values = [&](int from) {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < BANDS; c++) {
                const int key = from + 2 * t + i % 2 + i / 2 * 8;
                v[i][c] = make_uint4(0, 0, 0, 0);
                if (key < position)
                    v[i][c] = __ldcg(reinterpret_cast<const uint4*>(v_cache + (head + key) * HS + c * 64 + g * 8));
            }
    };
    const int first = oldest / AT_ONCE * AT_ONCE + warp * AT_ONCE;
    request_keys(first);
    request_values(first);

    const Real* token = qkv + size_t(b) * (NH + 2 * NKV) * HS;
    const float *cosine = cosines + size_t(position) * HALF, *sine = sines + size_t(position) * HALF;
    for (int h = warp; h < GROUP + 2; h += WARPS) {
        const size_t place = (head + position) * HS;
        if (h < GROUP) {
            turn(token + (kv * GROUP + h) * HS, q_weight, cosine, sine, interleaved, eps, scale * LOG2,
                 [&](int c, float x) { qs[h][c] = x; });
        } else if (h == GROUP) {
            turn(token + (NH + kv) * HS, k_weight, cosine, sine, interleaved, eps, 1.0f,
                 [&](int c, float x) { fresh[0][c] = k_cache[place + c] = from_float<Real>(x); });
        } else {
            for (int c = lane; c < HS; c += WARP_SIZE) fresh[1][c] = v_cache[place + c] = token[(NH + NKV + kv) * HS + c];
        }
    }
    __syncthreads();

    // Queries are rows 0 to 7 of the product with keys, what their rounding lost is rows 8 to 15.
    uint32_t q[CHUNKS][2][4];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                const int channel = c * 32 + t * 8 + half * 4 + pair * 2;
                const bool own = g < GROUP;
                const float* from = qs[own ? g : 0] + channel;
                split<Real>(own ? from[0] : 0.0f, own ? from[1] : 0.0f, q[c][half][2 * pair], q[c][half][2 * pair + 1]);
            }
    float m = -INFINITY, l = 0.0f, o[TILES][4] = {};  // of query g

    auto add_keys = [&](int from, int oldest_key, int end, auto after_keys) {
        float s[2][4] = {};
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma_m16n8k16<Real>(s[i], q[c][0], {k[i][c].x, k[i][c].y});
                mma_m16n8k16<Real>(s[i], q[c][1], {k[i][c].z, k[i][c].w});
            }
        after_keys();
        float score[4], largest = m;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = from + 2 * t + i % 2 + i / 2 * 8;
            score[i] = key >= oldest_key && key < end ? s[i / 2][i % 2] + s[i / 2][i % 2 + 2] : -INFINITY;
            largest = fmaxf(largest, score[i]);
        }
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
        const float base = largest == -INFINITY ? 0.0f : largest, shrink = exp2f(m - base);  // no key of the window yet
        m = largest;
        l *= shrink;
#pragma unroll
        for (int i = 0; i < 4; i++) l += score[i] = exp2f(score[i] - base);
        uint32_t p[4];
        split<Real>(score[0], score[1], p[0], p[1]);
        split<Real>(score[2], score[3], p[2], p[3]);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {  // channel 64 * (tile / 8) + 8 g + tile % 8
            const int c = tile / 8, word = tile % 8 / 2, high = tile % 2;
#pragma unroll
            for (int e = 0; e < 4; e++) o[tile][e] *= shrink;
            mma_m16n8k16<Real>(o[tile], p,
                               {halves_of(word_of(v[0][c], word), word_of(v[1][c], word), high),
                                halves_of(word_of(v[2][c], word), word_of(v[3][c], word), high)});
        }
    };
    for (int from = first; from < position; from += AT_ONCE * WARPS) {
        add_keys(from, oldest, position, [&] { request_keys(from + AT_ONCE * WARPS); });
        request_values(from + AT_ONCE * WARPS);
    }
    if (warp == WARPS - 1) {  // the new key as the first of sixteen
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                k[i][c] = make_uint4(0, 0, 0, 0);
                if (i == 0 && g == 0) k[i][c] = *reinterpret_cast<const uint4*>(fresh[0] + c * 32 + t * 8);
            }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < BANDS; c++) {
                v[i][c] = make_uint4(0, 0, 0, 0);
                if (i == 0 && t == 0) v[i][c] = *reinterpret_cast<const uint4*>(fresh[1] + c * 64 + g * 8);
            }
        add_keys(0, 0, 1, [] {});
    }

    // Of the columns of a tile, lane t has 2 t and the next: channels 8 (2 t) + tile % 8 and 8 further.
    l += __shfl_xor_sync(ALL_LANES, l, 1);
    l += __shfl_xor_sync(ALL_LANES, l, 2);
    if (g < GROUP) {
        if (t == 0) ms[warp][g] = m, ls[warp][g] = l;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int e = 0; e < 2; e++) os[warp][g][tile / 8 * 64 + (2 * t + e) * 8 + tile % 8] = o[tile][e] + o[tile][e + 2];
    }
    merge(os, ms, ls, out + (size_t(b) * NH + kv * GROUP) * HS);
}
