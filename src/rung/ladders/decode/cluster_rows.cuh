// The products of a phase: rows of all channels, rows of a head or of the cluster's hidden units, and the head's tiles with the
// choice of the token.
#pragma once
#include "cluster_consumer.cuh"

namespace decode::clusters {

// Rows of C columns times the vector; a row's parts lie Split::WARPS apart.
template <class S>
__device__ __forceinline__ void ClusterConsumer::multiply_rows(int buffer, int rows, bool late)
{
    const int part = warp_id() % S::WARPS;
    const Product<S::CHUNKS, true> x = {step.s.vector, ROW_COLUMNS, part};
    await(buffer);
    // perhaps never false: most shapes have work for every warp
    if (warp_id() < S::WARPS * S::GROUPS)
#pragma unroll
        for (int tile = 0; tile < S::TILES; tile += S::GROUPS) {
            const int own = tile + warp_id() / S::WARPS;
            if (own >= S::TILES) break;
            const float sum = x.sum(step.weights + BEGIN[buffer] + part * S::CHUNKS * 64, ROW, own * 8, rows - 1);
            if (lane_id() % 4 == 0) step.s.partial[(own * 8 + lane_id() / 4) * S::WARPS + part] = sum;
        }
    if (!late) release(step.s.empty + buffer);
    sync_computing();
}

// Each warp computes tiles of the block's outputs over the columns whose inputs the cluster holds: partial sums for all
// clusters.
template <int N, bool WITH_ERRORS, int PARTS_>
__device__ __forceinline__ void ClusterConsumer::multiply_outputs(int buffer, int stride, const Factor* vector, int errors_at,
                                                                  const PartSums<PARTS_>& to, int part)
{
    const Product<N, WITH_ERRORS> x = {vector, errors_at, 0};
    await(buffer);
#pragma unroll
    for (int tile = 0; tile < OUTPUTS / 8; tile += STEP_WARPS) {
        const int own = tile + warp_id();
        if (own >= OUTPUTS / 8) break;
        const float sum = x.sum(step.weights + BEGIN[buffer], stride, own * 8, OUTPUTS - 1);
        send_sums(to, epoch, step.rank * COLUMNS + own * 2, part, sum);
    }
    if (!ONE_HEAD || LATE_REFILL == 0) release(step.s.empty + buffer);
}

// One tile at a time, each warp independently.
__device__ __forceinline__ Best ClusterConsumer::head()
{
    const int begin = step.vocabulary.begin(blockIdx.x), own = step.vocabulary.count(blockIdx.x), warp = warp_id();
    Best best = {-INFINITY, INT_MAX};
    int round = 0;
    using Rows = Product<CHUNKS_OF_ROW, true, SCALED && C % 128 == 0>;
    const Rows kept = {step.s.vector, ROW_COLUMNS, 0};
#pragma unroll 1
    for (int tile = warp; tile * 8 < own; tile += STEP_WARPS, round++) {
        const int count = min(8, own - tile * 8), row = lane_id() / 4, token = begin + tile * 8 + row;
        const int slot = SCALED ? tile % SLOTS : warp, phase = SCALED ? tile / SLOTS : round;
        const float own_scale = row_scale[0];
        const Rows x = SCALED ? kept : Rows{step.s.vector, ROW_COLUMNS, 0};
        if (SCALED) row_scale[0] = ask_scale(step.m.head_s + min(token + STEP_WARPS * 8, V - 1));
        step.watch.start(WEIGHTS);
        byte_barrier_wait(step.s.tile_full + slot, phase % 2);
        step.watch.start(PRODUCTS);
        const float logit = scaled(x.sum(step.weights + slot * 8 * HEAD_ROW, HEAD_ROW, 0, count - 1), own_scale);
        release(step.s.tile_empty + slot);
        if (lane_id() % 4 == x.writer(row) && row < count) step.m.logits[token] = logit, best = better(best, {logit, token});
    }
    return warp_best(best);
}

// Each block sends its largest logit to the first block, which picks the token.
__device__ __forceinline__ void ClusterConsumer::pick(Best best)
{
    ExchangeBuffers& s = step.s;
    if (lane_id() == 0) s.winners[warp_id()] = best;
    sync_computing();
    if (threadIdx.x == 0) {
        for (int w = 1; w < STEP_WARPS; w++) best = better(best, s.winners[w]);
        send(best_packets + blockIdx.x, __float_as_uint(best.value), uint32_t(best.index), 0, epoch);
    }
    if (blockIdx.x > 0 || warp_id() > 0) return;
    for (int i = lane_id(); i < BLOCKS; i += WARP_SIZE) {
        Packet got[1];
        decode::receive(got, epoch, [&](int) { return best_packets + i; });
        best = better(best, {__uint_as_float(got[0].word[0]), int(got[0].word[1])});
    }
    best = warp_best(best);
    if (lane_id() == 0) *step.m.next = best.index;
}

}  // namespace decode::clusters
