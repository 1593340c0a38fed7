/*---
idea   = "Rung 3 with keys and values in eight bits and a scale for each: half the bytes. A byte becomes a bfloat16 by three instructions for two, without conversion; scales are applied to scores and to weights."
expect = "Keys and values of 256 texts of Qwen3-0.6B with 192 keys take 26 us of an H200's memory instead of 52; the conversion is two instructions a number, some 10 us of all multiprocessors, beside the loads. As many bytes as before have to be requested ahead: 32 keys of a warp."
found  = "64 texts with 256 keys and heads of 128: 24.5 us on an H200 (rung 3: 24.8), 24.7 on an H100 (30.0). A step of 256 texts of Qwen3-0.6B takes 2,812 us instead of 3,193, one of Llama-3.2-1B, with heads of 64, 1,928 instead of 1,879."
rewrite = "The operands of products come from bytes, and each warp has a ring of keys in registers."
dtypes = ["bf16", "f16"]
needs  = ["sm >= 80", "HS == 64 or HS == 128", "NH // NKV <= 8", "NKV <= 65535 and B <= 65535"]
[tune]
WARPS  = [2, 4]
STAGES = [1, 2]
[define]
HS    = "HS"
GROUP = "NH // NKV"
[[launch]]
kernel = "rope_cached_attention"
grid   = ["NKV", "B"]
block  = "32 * WARPS"
pdl    = true
[model]
serves = { step = 1 }
untuned = [{ when = "HS == 128", STAGES = 2 }, { when = "B * NKV < 768", WARPS = 4 }]
---*/
#include "quantised.cuh"
#include "turned_heads.cuh"

typedef __nv_bfloat16 Operand;                   // of all products: bytes are exact in it
constexpr int TILES = HS / 8, PIECES = HS / 64;  // of 8 channels; of 64, of which a lane has 16
constexpr int WORDS = HS / 32;                   // a lane's channels of a value
constexpr int LANES = HS / QUANTISED_EACH;       // that quantise a key

// Two bytes of a word, the lower ones of its halves, as operands: 128 + the seven low bits, minus 128 or, for a set sign, 256.
__device__ __forceinline__ uint32_t widened(uint32_t bytes)
{
    const uint32_t low = (bytes & 0x007f007fu) | 0x43004300u, less = (bytes & 0x00800080u) | 0x43004300u;
    const __nv_bfloat162 found =
        __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&low), *reinterpret_cast<const __nv_bfloat162*>(&less));
    return *reinterpret_cast<const uint32_t*>(&found);
}

// What a lane has of sixteen keys, and of their values.
struct Stage
{
    uint4 k[2][PIECES];    // keys g and 8 + g, channels 64 c + 16 t to + 15
    uint32_t v[4][WORDS];  // values 2 t and the next, and those 8 further, channels 4 WORDS g to 4 WORDS (g + 1) - 1
    float k_scale[4], v_scale[4];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    rope_cached_attention(const Real* qkv, const Real* q_weight, const Real* k_weight, const float* cosines, const float* sines,
                          const int* past, int8_t* k_cache_q, int8_t* v_cache_q, float* k_cache_s, float* v_cache_s, Real* out,
                          int NH, int NKV, int S, int interleaved, float eps, float scale, int window)
{
    __shared__ __align__(16) float qs[GROUP][HS];
    __shared__ __align__(16) Real fresh[2][HS];  // the new key and value
    __shared__ float os[WARPS][GROUP][HS], ms[WARPS][GROUP], ls[WARPS][GROUP];
    const int lane = lane_id(), warp = warp_id(), g = lane / 4, t = lane % 4, kv = blockIdx.x, b = blockIdx.y;
    const int position = past[b], oldest = max(0, position - window + 1);
    const size_t head = (size_t(b) * NKV + kv) * S;
    pdl_wait();
    pdl_launch_dependents();

    auto place = [&](int i) { return 2 * t + i % 2 + i / 2 * 8; };
    auto request = [&](Stage& stage, int from) {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < PIECES; c++) {
                const int key = from + 8 * i + g;
                stage.k[i][c] = make_uint4(0, 0, 0, 0);
                if (key < position)
                    stage.k[i][c] = __ldcg(reinterpret_cast<const uint4*>(k_cache_q + (head + key) * HS + c * 64 + t * 16));
            }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = from + place(i);
            stage.k_scale[i] = stage.v_scale[i] = 0.0f;
#pragma unroll
            for (int w = 0; w < WORDS; w++) stage.v[i][w] = 0;
            if (key >= position) continue;
            stage.k_scale[i] = __ldcg(k_cache_s + head + key), stage.v_scale[i] = __ldcg(v_cache_s + head + key);
            const int8_t* value = v_cache_q + (head + key) * HS + g * 4 * WORDS;
#pragma unroll
            for (int w = 0; w < WORDS; w += 2) {
                const uint2 two = __ldcg(reinterpret_cast<const uint2*>(value + 4 * w));
                stage.v[i][w] = two.x, stage.v[i][w + 1] = two.y;
            }
        }
    };
    Stage stages[STAGES];
    const int first = oldest / AT_ONCE * AT_ONCE + warp * AT_ONCE;
#pragma unroll
    for (int s = 0; s < STAGES; s++) request(stages[s], first + s * AT_ONCE * WARPS);

    const Real* token = qkv + size_t(b) * (NH + 2 * NKV) * HS;
    const float *cosine = cosines + size_t(position) * HALF, *sine = sines + size_t(position) * HALF;
    for (int h = warp; h < GROUP + 2; h += WARPS) {
        if (h < GROUP) {
            turn(token + (kv * GROUP + h) * HS, q_weight, cosine, sine, interleaved, eps, scale * LOG2,
                 [&](int c, float x) { qs[h][c] = x; });
        } else if (h == GROUP) {
            turn(token + (NH + kv) * HS, k_weight, cosine, sine, interleaved, eps, 1.0f,
                 [&](int c, float x) { fresh[0][c] = from_float<Real>(x); });
        } else {
            for (int c = lane; c < HS; c += WARP_SIZE) fresh[1][c] = token[(NH + NKV + kv) * HS + c];
        }
    }
    __syncthreads();
    if (warp == 0) {  // the new key and value, each by as many lanes as it has pieces
        const int of = min(lane / LANES, 1), piece = lane % LANES;
        const Quantised found = quantised_from(LANES, fresh[of] + piece * QUANTISED_EACH);
        if (lane < 2 * LANES) {
            reinterpret_cast<uint4*>((of ? v_cache_q : k_cache_q) + (head + position) * HS)[piece] = found.bits;
            if (piece == 0) (of ? v_cache_s : k_cache_s)[head + position] = found.scale;
        }
    }

    // Queries are rows 0 to 7 of the product with keys, what their rounding lost is rows 8 to 15. A word of a key is the operand
    // of a product: its bytes 0 and 2, and 1 and 3.
    uint32_t q[HS / 16][4];
#pragma unroll
    for (int n = 0; n < HS / 16; n++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            const bool own = g < GROUP;
            const float* from = qs[own ? g : 0] + n / 4 * 64 + t * 16 + n % 4 * 4 + pair;
            split<Operand>(own ? from[0] : 0.0f, own ? from[2] : 0.0f, q[n][2 * pair], q[n][2 * pair + 1]);
        }
    float m = -INFINITY, l = 0.0f, o[TILES][4] = {};  // of query g

    auto add = [&](const Stage& stage, int from, int oldest_key, int end) {
        float s[2][4] = {};
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int n = 0; n < HS / 16; n++) {
                const uint4& piece = stage.k[i][n / 4];
                const uint32_t word = n % 4 == 0 ? piece.x : n % 4 == 1 ? piece.y : n % 4 == 2 ? piece.z : piece.w;
                mma_m16n8k16<Operand>(s[i], q[n], {widened(word), widened(word >> 8)});
            }
        float score[4], largest = m;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = from + place(i);
            const bool seen = key >= oldest_key && key < end;
            score[i] = seen ? (s[i / 2][i % 2] + s[i / 2][i % 2 + 2]) * stage.k_scale[i] : -INFINITY;
            largest = fmaxf(largest, score[i]);
        }
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
        const float base = largest == -INFINITY ? 0.0f : largest, shrink = exp2f(m - base);  // no key of the window yet
        m = largest;
        if (__any_sync(ALL_LANES, shrink != 1.0f)) {
            l *= shrink;
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[tile][e] *= shrink;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            l += score[i] = exp2f(score[i] - base);
            score[i] *= stage.v_scale[i];
        }
        uint32_t p[4];
        split<Operand>(score[0], score[1], p[0], p[1]);
        split<Operand>(score[2], score[3], p[2], p[3]);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {  // channel 4 WORDS g + tile
            const int word = tile / 4, bytes = tile % 4 * 0x11 + 0x4400 + tile % 4 * 0x1100;
            mma_m16n8k16<Operand>(o[tile], p,
                                  {widened(__byte_perm(stage.v[0][word], stage.v[1][word], bytes)),
                                   widened(__byte_perm(stage.v[2][word], stage.v[3][word], bytes))});
        }
    };
    for (int from = first; from < position; from += STAGES * AT_ONCE * WARPS)
#pragma unroll
        for (int s = 0; s < STAGES; s++) {
            const int at = from + s * AT_ONCE * WARPS;
            if (at >= position) break;
            add(stages[s], at, oldest, position);
            request(stages[s], at + STAGES * AT_ONCE * WARPS);
        }
    if (g < GROUP) {  // of query g lane t has columns 2 t and the next: channels 4 WORDS (2 t) + tile and 4 WORDS further
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int e = 0; e < 2; e++) os[warp][g][(2 * t + e) * 4 * WORDS + tile] = o[tile][e] + o[tile][e + 2];
    }
    l += __shfl_xor_sync(ALL_LANES, l, 1);
    l += __shfl_xor_sync(ALL_LANES, l, 2);
    if (g < GROUP && t == 0) ms[warp][g] = m, ls[warp][g] = l;
    __syncwarp();
    // The new key takes part as it is.
    if (warp == WARPS - 1) {
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            float dot = 0.0f;
            for (int c = lane; c < HS; c += WARP_SIZE) dot += qs[h][c] * to_float(fresh[0][c]);
            const float score = warp_sum(dot), before = ms[warp][h], most = fmaxf(before, score);
            const float shrink = exp2f(before - most), weight = exp2f(score - most);
            for (int c = lane; c < HS; c += WARP_SIZE) os[warp][h][c] = os[warp][h][c] * shrink + weight * to_float(fresh[1][c]);
            __syncwarp();
            if (lane == 0) ms[warp][h] = most, ls[warp][h] = ls[warp][h] * shrink + weight;
        }
    }
    merge(os, ms, ls, out + (size_t(b) * NH + kv * GROUP) * HS);
}
