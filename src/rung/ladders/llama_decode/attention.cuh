// Attention of one token: the blocks share keys by heads of keys and by parts of the text.
#pragma once
#include "packets.cuh"
#include "weights.cuh"

namespace llama {

constexpr int LANES = HS / VEC, AT_ONCE = WARP_SIZE / LANES;  // lanes per key, keys per request
constexpr int HALF = HS / 2, PAIRS = ceil_div(HALF, WARP_SIZE), TOKEN = (GROUP + 2) * HS;
constexpr int OF_PACKET = 2 * PACK;                     // channels of a packet of outputs
constexpr int AT_A_TIME = KEY_LOADS * WARPS * AT_ONCE;  // keys that a block requests together: a part, while there are blocks
constexpr float LOG2 = 1.4426950408889634f;
static_assert(HS % VEC == 0 && WARP_SIZE % LANES == 0, "a key must be 1, 2, 4 ... 32 pieces of 16 bytes");

__device__ __forceinline__ uint32_t word_of(float a, float b)
{
#if defined(RUNG_F16)
    const float most = 65504.0f;  // larger numbers are clamped, and NaN stays NaN
    return pack2<__half>(a > most ? most : a < -most ? -most : a, b > most ? most : b < -most ? -most : b);
#elif defined(RUNG_BF16)
    return pack2<Real>(a, b);
#else
    return __float_as_uint(a);
#endif
}
// Number i of neighbouring words.
__device__ __forceinline__ float number_in(const uint32_t* words, int i)
{
    return number_at(make_uint4(words[0], words[1], 0, 0), i);
}

// What a lane, and later a warp, has found of its keys, for each query of the group; maxima are of base 2.
struct Found
{
    float m[GROUP], l[GROUP], o[GROUP][VEC];

    __device__ __forceinline__ void add(const float* queries, const uint4& k, const uint4& v, bool seen)
    {
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float score = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC; j += 4) {
                const float4 q = *reinterpret_cast<const float4*>(queries + g * HS + j);
                score +=
                    q.x * number_at(k, j) + q.y * number_at(k, j + 1) + q.z * number_at(k, j + 2) + q.w * number_at(k, j + 3);
            }
#pragma unroll
            for (int offset = LANES / 2; offset > 0; offset /= 2) score += __shfl_xor_sync(ALL_LANES, score, offset);
            if (!seen) continue;
            const float largest = fmaxf(m[g], score), shrink = exp2f(m[g] - largest), p = exp2f(score - largest);
            m[g] = largest;
            l[g] = l[g] * shrink + p;
#pragma unroll
            for (int j = 0; j < VEC; j++) o[g][j] = o[g][j] * shrink + p * number_at(v, j);
        }
    }

    // The lanes of a warp that have the same channels of different keys.
    __device__ __forceinline__ void merge()
    {
#pragma unroll
        for (int g = 0; g < GROUP; g++)
#pragma unroll
            for (int offset = WARP_SIZE / 2; offset >= LANES; offset /= 2) {
                const float other = __shfl_xor_sync(ALL_LANES, m[g], offset), largest = fmaxf(m[g], other);
                const float shrink = m[g] == -INFINITY ? 0.0f : exp2f(m[g] - largest);
                m[g] = largest;
                l[g] *= shrink;
                l[g] += __shfl_xor_sync(ALL_LANES, l[g], offset);
#pragma unroll
                for (int j = 0; j < VEC; j++) {
                    o[g][j] *= shrink;
                    o[g][j] += __shfl_xor_sync(ALL_LANES, o[g][j], offset);
                }
            }
    }
};

// The text so far, and how its keys are divided.
struct Text
{
    int position, oldest, parts, share;

    __device__ __forceinline__ Text(int length, int window)
    {
        position = length, oldest = max(0, position - window + 1);
        parts = max(1, min(int(gridDim.x) / NKV, ceil_div(position - oldest, AT_A_TIME)));
        share = ceil_div(position - oldest, parts);
    }
};

struct Head
{
    const Real *q_weight, *k_weight;
    const float *cosines, *sines;  // of the position
    float eps, scale;
};

// Shared memory of a block's attention: the new token's heads, how they are turned and normalised, and what each warp has found.
struct Scratch
{
    float *token, *turns, *gains, *os, *ms, *ls;  // turns: cosines and sines; gains: of queries and of keys

    __device__ __forceinline__ explicit Scratch(float* from)
        : token(from), turns(token + TOKEN), gains(turns + HS), os(gains + 2 * HS), ms(os + WARPS * GROUP * HS),
          ls(ms + WARPS * GROUP)
    {
    }

    // Requested before the token's heads have come.
    __device__ __forceinline__ void prepare(const Head& head) const
    {
        for (int i = threadIdx.x; i < HS; i += THREADS) {
            turns[i] = i < HALF ? head.cosines[i] : head.sines[i - HALF];
            if (head.q_weight != nullptr) gains[i] = to_float(head.q_weight[i]);
            if (head.k_weight != nullptr) gains[HS + i] = to_float(head.k_weight[i]);
        }
    }

    // One head by one warp, in place: normalised if there is a weight, turned, and times `factor`.
    __device__ __forceinline__ void turn(const Head& given, int h) const
    {
        const bool query = h < GROUP, normed = (query ? given.q_weight : given.k_weight) != nullptr;
        const float *gain = query ? gains : gains + HS, factor = query ? given.scale * LOG2 : 1.0f;
        float *head = token + h * HS, a[PAIRS], b[PAIRS], squares = 0.0f;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int pair = lane_id() + i * WARP_SIZE;
            a[i] = b[i] = 0.0f;
            if (pair >= HALF) continue;
            a[i] = head[pair], b[i] = head[pair + HALF];
            squares += a[i] * a[i] + b[i] * b[i];
        }
        const float norm = normed ? rsqrtf(warp_sum(squares) / HS + given.eps) : 1.0f;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int pair = lane_id() + i * WARP_SIZE;
            if (pair >= HALF) continue;
            const float low = a[i] * norm * (normed ? gain[pair] : 1.0f);
            const float high = b[i] * norm * (normed ? gain[pair + HALF] : 1.0f);
            head[pair] = factor * (low * turns[pair] - high * turns[pair + HALF]);
            head[pair + HALF] = factor * (high * turns[pair] + low * turns[pair + HALF]);
        }
    }
};

// A part of the keys of one group's queries. Keys and values are requested before the new token's heads have come. `keys` and
// `values` are those of the layer and the head, `qkv` the mailbox of the token's heads, `to` and `heads` that of the outputs.
__device__ __forceinline__ void attend(const Text& text, const Head& head, Real* keys, Real* values, const uint2* qkv, Packet* to,
                                       int kv, int part, const Scratch& shared, int delay, uint32_t epoch)
{
    const int lane = lane_id(), warp = warp_id(), channel = lane % LANES * VEC;
    const int first = text.oldest + part * text.share, end = min(text.position, first + text.share);
    uint4 k[KEY_LOADS], v[KEY_LOADS];
    const auto request = [&](int from) {
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) {
            const int key = from + (i * WARPS + warp) * AT_ONCE + lane / LANES;
            k[i] = v[i] = make_uint4(0, 0, 0, 0);
            if (key >= end) continue;
            k[i] = __ldcg(reinterpret_cast<const uint4*>(keys + size_t(key) * HS + channel));
            v[i] = __ldcg(reinterpret_cast<const uint4*>(values + size_t(key) * HS + channel));
        }
    };
    request(first);

    // The group's queries, and in the first part the new key and value.
    const int heads = part == 0 ? GROUP + 2 : GROUP;
    shared.prepare(head);
    delay_polling(delay);
    for (int i = 2 * threadIdx.x; i < heads * HS; i += 2 * THREADS) {
        const int own = i / HS, row = own < GROUP ? kv * GROUP + own : NH + kv + (own - GROUP) * NKV;
        Two got[1];
        receive(got, epoch, [&](int) { return qkv + row * HS + i % HS; });
        *reinterpret_cast<float2*>(shared.token + i) =
            make_float2(__uint_as_float(got[0].word[0]), __uint_as_float(got[0].word[1]));
    }
    sync_computing();
    for (int h = warp; h < min(heads, GROUP + 1); h += WARPS) shared.turn(head, h);
    sync_computing();

    Found found;
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        found.m[g] = -INFINITY, found.l[g] = 0.0f;
#pragma unroll
        for (int j = 0; j < VEC; j++) found.o[g][j] = 0.0f;
    }
    for (int from = first; from < end; from += AT_A_TIME) {
        if (from > first) request(from);
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++)
            found.add(shared.token + channel, k[i], v[i], from + (i * WARPS + warp) * AT_ONCE + lane / LANES < end);
    }
    if (part == 0 && warp == 0) {
        Vec16<Real> key, value;
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            key[j] = from_float<Real>(shared.token[GROUP * HS + channel + j]);
            value[j] = from_float<Real>(shared.token[(GROUP + 1) * HS + channel + j]);
        }
        found.add(shared.token + channel, bits_of(key), bits_of(value), lane < LANES);
        if (lane < LANES) {
            store_vec(keys + size_t(text.position) * HS + channel, key);
            store_vec(values + size_t(text.position) * HS + channel, value);
        }
    }
    found.merge();
    if (lane < LANES)
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            if (lane == 0) shared.ms[warp * GROUP + g] = found.m[g], shared.ls[warp * GROUP + g] = found.l[g];
#pragma unroll
            for (int j = 0; j < VEC; j++) shared.os[(warp * GROUP + g) * HS + channel + j] = found.o[g][j];
        }
    sync_computing();

    for (int i = threadIdx.x; i < GROUP * HS / OF_PACKET; i += THREADS) {
        const int g = i * OF_PACKET / HS, hs = i * OF_PACKET % HS;
        float most = -INFINITY, total = 0.0f, y[OF_PACKET] = {};
#pragma unroll
        for (int w = 0; w < WARPS; w++) most = fmaxf(most, shared.ms[w * GROUP + g]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float own = shared.ms[w * GROUP + g], weight = own == -INFINITY ? 0.0f : exp2f(own - most);
            total += weight * shared.ls[w * GROUP + g];
#pragma unroll
            for (int j = 0; j < OF_PACKET; j++) y[j] += weight * shared.os[(w * GROUP + g) * HS + hs + j];
        }
        const float sure = total > 0.0f ? 1.0f / total : 0.0f;  // a part may have no key
        send(to + size_t(part) * (NH * HS / OF_PACKET) + (kv * GROUP + g) * (HS / OF_PACKET) + hs / OF_PACKET,
             word_of(y[0] * sure, y[1] * sure), word_of(y[OF_PACKET / 2] * sure, y[OF_PACKET - 1] * sure),
             __float_as_uint(most + __log2f(total)), epoch);
    }
    sync_computing();  // before the shared memory is written again
}

// All heads' outputs, merged from their parts.
__device__ __forceinline__ void receive_outputs(const Packet* from, int parts, const Vector& to, uint32_t epoch)
{
    constexpr int PACKETS = NH * HS / OF_PACKET, TOGETHER = 4;
    for (int i = threadIdx.x; i < PACKETS; i += THREADS) {
        float top = -INFINITY, sum = 0.0f, y[OF_PACKET] = {};
        for (int part = 0; part < parts; part += TOGETHER) {
            Packet got[TOGETHER];
            receive(got, epoch, [&](int p) { return from + size_t(min(part + p, parts - 1)) * PACKETS + i; });
            float higher = top;
#pragma unroll
            for (int p = 0; p < TOGETHER; p++) higher = fmaxf(higher, __uint_as_float(got[p].word[2]));
            const float shrink = exp2f(top - higher);
            top = higher, sum *= shrink;
#pragma unroll
            for (int j = 0; j < OF_PACKET; j++) y[j] *= shrink;
#pragma unroll
            for (int p = 0; p < TOGETHER; p++) {
                const float weight = part + p < parts ? exp2f(__uint_as_float(got[p].word[2]) - higher) : 0.0f;
                sum += weight;
#pragma unroll
                for (int j = 0; j < OF_PACKET; j++) y[j] += weight * number_in(got[p].word, j);
            }
        }
        const float sure = 1.0f / sum;
#pragma unroll
        for (int j = 0; j < OF_PACKET; j += 2) to.set2(i * OF_PACKET + j, NH * HS / VEC, y[j] * sure, y[j + 1] * sure);
    }
}

}  // namespace llama
