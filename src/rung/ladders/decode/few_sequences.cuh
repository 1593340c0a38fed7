// What the kernels of a step for few sequences share, whether weights are loaded into registers or streamed. `wait` waits for the
// kernel before.
#pragma once
#include "cached_keys.cuh"

namespace decode {

// A block takes KEY_WARPS shares of one head's keys; blocks beyond the sequence's end have nothing to do.
template <class Wait>
__device__ __forceinline__ void attend_keys(const int* lengths, const float* q, const Real* k_cache, const Real* v_cache,
                                            float* parts, int layer, float scale, Wait wait)
{
    using Share = Keys<KEY_LOADS>;
    const int part = blockIdx.x, head = blockIdx.y, b = blockIdx.z, lane = lane_id(), warp = warp_id();
    const int length = load_fresh(lengths + b), first = (part * KEY_WARPS + warp) * Share::COUNT;
    if (part * KEY_WARPS * Share::COUNT > length) return;

    const Real* keys = k_cache + cached(layer, b, head, 0);
    const Real* values = v_cache + cached(layer, b, head, 0);
    Share share;
    share.request(keys, values, first, 0, length, lane);
    wait();
    share.request(keys, values, first, length, length + 1, lane);
    float query[VEC], y[VEC], m, l;
#pragma unroll
    for (int j = 0; j < VEC; j += 4) {
        const float4 f = load_fresh(reinterpret_cast<const float4*>(q + b * C + head * HS + lane % Share::LANES * VEC + j));
        query[j] = f.x, query[j + 1] = f.y, query[j + 2] = f.z, query[j + 3] = f.w;
    }
    share.attend(query, BY_LAYER ? scale / (layer + 1) : scale, first, length + 1, lane, m, l, y);
    store_part<KEY_WARPS>(parts + ((size_t(b) * NH + head) * PARTS + part) * (HS + 4), m, l, y, lane, warp);
}

// The best that the block's warps have seen of each sequence.
template <int WARPS, class Sync>
__device__ __forceinline__ void report_best(Best (&best)[B], float* best_value, int* best_index, Sync sync)
{
    __shared__ Best winners[B][WARPS];
#pragma unroll
    for (int b = 0; b < B; b++) {
        best[b] = warp_best(best[b]);
        if (lane_id() == 0) winners[b][warp_id()] = best[b];
    }
    sync();
    for (int b = threadIdx.x; b < B; b += WARPS * WARP_SIZE) {
        Best winner = winners[b][0];
        for (int w = 1; w < WARPS; w++) winner = better(winner, winners[b][w]);
        best_value[b * gridDim.x + blockIdx.x] = winner.value;
        best_index[b * gridDim.x + blockIdx.x] = winner.index;
    }
}

// The best of all blocks. One block per sequence, 128 threads.
template <class Wait>
__device__ __forceinline__ void pick_best(const float* best_value, const int* best_index, int* next, int groups, Wait wait)
{
    __shared__ Best winners[4];
    const int b = blockIdx.x;
    wait();
    Best best = {-INFINITY, INT_MAX};
    // perhaps never several turns: a vocabulary of more than 128 groups is too slow to emulate at every rung
    for (int i = threadIdx.x; i < groups; i += 128)
        best = better(best, {load_fresh(best_value + b * groups + i), load_fresh(best_index + b * groups + i)});
    best = warp_best(best);
    if (lane_id() == 0) winners[warp_id()] = best;
    __syncthreads();
    if (threadIdx.x == 0) next[b] = better(better(winners[0], winners[1]), better(winners[2], winners[3])).index;
}

}  // namespace decode
