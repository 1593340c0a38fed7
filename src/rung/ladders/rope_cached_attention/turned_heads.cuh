// What the rungs for many texts share: a warp turns a head, operands of products with what their rounding lost, and the
// warps' results become the group's.
#pragma once
#include "rung.cuh"

constexpr int HALF = HS / 2, PAIRS = ceil_div(HALF, WARP_SIZE);
constexpr int THREADS = 32 * WARPS, AT_ONCE = 16;  // keys of a warp at a time
constexpr float LOG2 = 1.4426950408889634f;

// One head by one warp: normalised if there is a weight, turned, and times `scale`.
template <class Store>
__device__ __forceinline__ void turn(const Real* in, const Real* weight, const float* cosines, const float* sines,
                                     int interleaved, float eps, float scale, Store store)
{
    float a[PAIRS], c[PAIRS], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int pair = lane_id() + i * WARP_SIZE;
        a[i] = c[i] = 0.0f;
        if (pair >= HALF) continue;
        a[i] = to_float(in[interleaved ? 2 * pair : pair]), c[i] = to_float(in[interleaved ? 2 * pair + 1 : pair + HALF]);
        squares += a[i] * a[i] + c[i] * c[i];
    }
    const float norm = weight != nullptr ? rsqrtf(warp_sum(squares) / HS + eps) : 1.0f;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int pair = lane_id() + i * WARP_SIZE;
        if (pair >= HALF) continue;
        const int first = interleaved ? 2 * pair : pair, second = interleaved ? 2 * pair + 1 : pair + HALF;
        const float low = a[i] * norm * (weight != nullptr ? to_float(weight[first]) : 1.0f);
        const float high = c[i] * norm * (weight != nullptr ? to_float(weight[second]) : 1.0f);
        store(first, scale * (low * cosines[pair] - high * sines[pair]));
        store(second, scale * (high * cosines[pair] + low * sines[pair]));
    }
}

// Two floats as 16-bit numbers, and what their rounding lost.
template <class T>
__device__ __forceinline__ void split(float a, float b, uint32_t& whole, uint32_t& rest)
{
    const T x = from_float<T>(a), y = from_float<T>(b);
    whole = pack2<T>(a, b);
    rest = pack2<T>(a - to_float(x), b - to_float(y));
}

// A block's warps have parts of the sums: the largest score, the sum of weights and the weighted values of each query.
__device__ __forceinline__ void merge(const float (&os)[WARPS][GROUP][HS], const float (&ms)[WARPS][GROUP],
                                      const float (&ls)[WARPS][GROUP], Real* to)
{
    __syncthreads();
    for (int i = threadIdx.x; i < GROUP * HS; i += THREADS) {
        const int of = i / HS, hs = i % HS;
        float most = -INFINITY, sum = 0.0f, total = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) most = fmaxf(most, ms[w][of]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float weight = exp2f(ms[w][of] - most);  // the last warp has seen a key, so that `most` is finite
            sum += weight * os[w][of][hs];
            total += weight * ls[w][of];
        }
        to[i] = from_float<Real>(sum / total);
    }
}
