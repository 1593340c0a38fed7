// Attention of one query by several warps and blocks: keys and values in registers, and the parts that are merged afterwards.
#pragma once
#include "decode.cuh"

namespace decode {

// The keys and values that one warp holds: LOADS requests of 16 bytes per lane, neighbouring lanes on one key.
template <int LOADS>
struct Keys
{
    static constexpr int LANES = HS / VEC;             // per key
    static constexpr int AT_ONCE = WARP_SIZE / LANES;  // keys per request
    static constexpr int COUNT = LOADS * AT_ONCE;
    static_assert(HS % VEC == 0 && WARP_SIZE % LANES == 0, "a key must be 1, 2, 4 ... 32 pieces of 16 bytes");

    uint4 k[LOADS], v[LOADS];

    // Loads keys and values `from` up to `to` of the warp's share, which begins at `first`.
    __device__ __forceinline__ void request(const Real* keys, const Real* values, int first, int from, int to, int lane)
    {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int t = first + i * AT_ONCE + lane / LANES;
            if (from == 0) k[i] = v[i] = zero_bits();  // masked keys get weight zero, but their values must be finite
            if (t >= from && t < to) {
                k[i] = __ldcg(reinterpret_cast<const uint4*>(keys + size_t(t) * HS) + lane % LANES);
                v[i] = __ldcg(reinterpret_cast<const uint4*>(values + size_t(t) * HS) + lane % LANES);
            }
        }
    }

    // Softmax over the keys before `end`: the maximum, the sum, and in lanes 0 .. LANES - 1 the weighted values.
    __device__ __forceinline__ void attend(const float (&q)[VEC], float scale, int first, int end, int lane, float& m, float& l,
                                           float (&y)[VEC]) const
    {
        float s[LOADS];
        m = -INFINITY;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const bool seen = first + i * AT_ONCE + lane / LANES < end;
            float dot = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC; j++) dot += weight_at(k[i], j, (const Real*)nullptr) * q[j];
#pragma unroll
            for (int offset = LANES / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(ALL_LANES, dot, offset);
            s[i] = seen ? dot * scale : -INFINITY;
            m = fmaxf(m, s[i]);
        }
        m = warp_max(m);
        const float base = m == -INFINITY ? 0.0f : m;
        l = 0.0f;
#pragma unroll
        for (int j = 0; j < VEC; j++) y[j] = 0.0f;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const float p = __expf(s[i] - base);
            l += p;
#pragma unroll
            for (int j = 0; j < VEC; j++) y[j] += p * weight_at(v[i], j, (const Real*)nullptr);
        }
#pragma unroll
        for (int offset = WARP_SIZE / 2; offset >= LANES; offset /= 2) {
            l += __shfl_xor_sync(ALL_LANES, l, offset);
#pragma unroll
            for (int j = 0; j < VEC; j++) y[j] += __shfl_xor_sync(ALL_LANES, y[j], offset);
        }
    }
};

struct BlockSync
{
    __device__ __forceinline__ void operator()() const { __syncthreads(); }
};

// Merges the warps' parts of one head into the block's: y (HS), then the maximum and the sum.
template <int WARPS, class Sync = BlockSync>
__device__ __forceinline__ void store_part(float* to, float m, float l, const float (&y)[VEC], int lane, int warp, Sync sync = {})
{
    __shared__ float ms[WARPS], ls[WARPS], ys[WARPS][HS];
    if (lane == 0) ms[warp] = m, ls[warp] = l;
    if (lane < HS / VEC)
#pragma unroll
        for (int j = 0; j < VEC; j++) ys[warp][lane * VEC + j] = y[j];
    sync();
    float largest = ms[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++) largest = fmaxf(largest, ms[w]);
    for (int d = thread_rank(); d < HS; d += WARPS * WARP_SIZE) {
        float sum = 0.0f, total = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float weight = ms[w] == -INFINITY ? 0.0f : __expf(ms[w] - largest);
            sum += weight * ys[w][d];
            total += weight * ls[w];
        }
        to[d] = sum;
        if (d == 0) to[HS] = largest, to[HS + 1] = total;
    }
}

// Four elements of a head's output, merged from the parts of its keys. Inactive parts repeat the last one's loads with weight
// zero: without a branch, all loads are in flight before the first is used, including those of neighbouring calls.
template <int MOST>
__device__ __forceinline__ float4 merged(const float* parts, int active, int d)
{
    constexpr int SIZE = HS + 4;
    float m[MOST], l[MOST];
    float4 y[MOST];
#pragma unroll
    for (int s = 0; s < MOST; s++) {
        const float* part = parts + min(s, active - 1) * SIZE;
        const float2 ml = __ldcg(reinterpret_cast<const float2*>(part + HS));
        m[s] = s < active ? ml.x : -INFINITY, l[s] = ml.y;
        y[s] = load_fresh(reinterpret_cast<const float4*>(part + d));
    }
    float largest = m[0];
#pragma unroll
    for (int s = 1; s < MOST; s++) largest = fmaxf(largest, m[s]);
    float total = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int s = 0; s < MOST; s++) {
        const float weight = __expf(m[s] - largest);
        total += weight * l[s];
        sum.x += weight * y[s].x, sum.y += weight * y[s].y, sum.z += weight * y[s].z, sum.w += weight * y[s].w;
    }
    return make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total);
}

}  // namespace decode
