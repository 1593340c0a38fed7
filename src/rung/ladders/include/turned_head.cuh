// Rotary positions of one head of HS numbers by one warp.
#pragma once
#include "rung.cuh"

constexpr int HALF = HS / 2, PAIRS = ceil_div(HALF, WARP_SIZE);

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
