// The producer thread of a block: it copies all weights of the step, and the cached keys, into the buffers.
#pragma once
#include "cluster_layout.cuh"

namespace decode::clusters {

// The producer thread: independently of the others, it fills each buffer as soon as it is free.
struct WeightProducer
{
    ClusterStep& step;
    unsigned uses[BUFFERS] = {};
    int tiles_early = 0;  // tiles of the head that have been requested before their turn

    __device__ __forceinline__ void begin(int buffer, unsigned bytes)
    {
        const unsigned before = uses[buffer]++;
        if (before > 0) {
            step.watch.start(IN_COPIES, FREE_BUFFER);
            byte_barrier_wait(step.s.empty + buffer, (before - 1) % 2);
            step.watch.start(IN_COPIES, WEIGHTS);
        }
        byte_barrier_expect(step.s.full + buffer, bytes);
    }

    __device__ __forceinline__ void rows(Address to, int stride, const Weight* from, int count, int from_stride, unsigned bytes,
                                         const uint64_t* barrier)
    {
        const Address there = shared_address(barrier);
#pragma unroll 4
        for (int r = 0; r < count; r++, to += stride, from += from_stride) bulk_copy(to, from, bytes, there);
    }

    // `count` rows of a phase's matrices, from row `row` and column `column` on, to `before` bytes behind the start of its buffer.
    template <int PHASE>
    __device__ __forceinline__ void copy(int before, int stride, size_t row, int column, int count, int columns)
    {
        rows(step.weights + BEGIN[PHASE] + before, stride, Operands<PHASE>::matrix(step.m, row) + column, count,
             Operands<PHASE>::SPEC.columns, columns * SIZE, step.s.full + PHASE);
    }

    // What a block has of each phase's matrix: rows of a head's queries, keys and values; its outputs, in the head's columns; rows
    // of the cluster's hidden units; its outputs again, in the columns of those units.
    __device__ __forceinline__ void qkv(int layer, int head)
    {
        begin(QKV, 3 * HEAD_ROWS * C * SIZE);
#pragma unroll 1
        for (int which = 0; which < 3; which++)
            copy<QKV>(which * HEAD_ROWS * ROW, ROW,
                      Operands<QKV>::first_row(layer) + which * C + head * HS + step.rank * HEAD_ROWS, 0, HEAD_ROWS, C);
    }
    __device__ __forceinline__ void keys(int layer, int head)
    {
        const int count = step.keys();
        if (count == 0) return;
        begin(AT_KEYS, 2 * count * KEY_BYTES);
        const size_t from = cached(layer, 0, head, step.keys_first());
        const Address to = step.weights + BEGIN[AT_KEYS], there = shared_address(step.s.full + AT_KEYS);
        bulk_copy(to, step.m.k_cache + from, count * KEY_BYTES, there);
        bulk_copy(to + MOST_KEYS * KEY_BYTES, step.m.v_cache + from, count * KEY_BYTES, there);
    }
    __device__ __forceinline__ void projection(int layer, int head)
    {
        begin(PROJ, OUTPUTS * HS * SIZE);
        copy<PROJ>(0, PROJ_ROW, Operands<PROJ>::first_row(layer) + step.rank * OUTPUTS, head * HS, OUTPUTS, HS);
    }
    __device__ __forceinline__ void mlp(int layer)
    {
        const int own = step.hidden / CLUSTER;
        begin(FC, own * C * SIZE);
        copy<FC>(0, ROW, Operands<FC>::first_row(layer) + step.hidden_begin + step.rank * own, 0, own, C);
        begin(FC2, OUTPUTS * step.hidden * SIZE);
        copy<FC2>(0, FC2_ROW, Operands<FC2>::first_row(layer) + step.rank * OUTPUTS, step.hidden_begin, OUTPUTS, step.hidden);
    }

    // One tile for each warp, then the next for each; the first ones go where the last layer's weights were.
    __device__ __forceinline__ void head()
    {
        const int own = step.vocabulary.count(blockIdx.x), tiles = ceil_div(own, 8);
        const Weight* from = step.m.head_w + size_t(step.vocabulary.begin(blockIdx.x)) * C;
        int free = 0;  // buffers that are no longer needed
#pragma unroll 1
        // perhaps never skipped: only int8 fetches all its tiles early
        for (int tile = SCALED ? tiles_early : 0; tile < tiles; tile++) {
            const int slot = tile % SLOTS, count = min(8, own - tile * 8);
            step.watch.start(IN_COPIES, FREE_BUFFER);
            // perhaps never true: few tokens have no more tiles than slots
            if (tile >= SLOTS) byte_barrier_wait(step.s.tile_empty + slot, (tile / SLOTS - 1) % 2);
#pragma unroll
            for (int buffer = 0; buffer < AT_KEYS; buffer++)
                if (free == buffer && BEGIN[buffer] < (slot + 1) * 8 * HEAD_ROW) {
                    if (uses[buffer] > 0) byte_barrier_wait(step.s.empty + buffer, (uses[buffer] - 1) % 2);
                    free++;
                }
            step.watch.start(IN_COPIES, WEIGHTS);
            fetch(from + size_t(tile) * 8 * C, slot, count);
        }
    }
    __device__ __forceinline__ void fetch(const Weight* from, int slot, int count)
    {
        byte_barrier_expect(step.s.tile_full + slot, count * C * SIZE);
        if (HEAD_ROW == C * SIZE)
            bulk_copy(step.weights + slot * 8 * HEAD_ROW, from, count * C * SIZE, shared_address(step.s.tile_full + slot));
        else
            rows(step.weights + slot * 8 * HEAD_ROW, ROW, from, count, C, C * SIZE, step.s.tile_full + slot);
    }

    // Tiles that fit next to a layer's weights, some with each layer except the first.
    __device__ __forceinline__ void tiles_of_the_head(int layer)
    {
        if (layer == 0) return;
        const int own = step.vocabulary.count(blockIdx.x), each = ceil_div(int(EARLY_TILES), L - 1);
        const int last = min(min(tiles_early + each, int(EARLY_TILES)), ceil_div(own, 8));
        const Weight* from = step.m.head_w + size_t(step.vocabulary.begin(blockIdx.x)) * C;
#pragma unroll 1
        for (; tiles_early < last; tiles_early++)
            fetch(from + size_t(tiles_early) * 8 * C, tiles_early, min(8, own - tiles_early * 8));
    }

    __device__ __forceinline__ void run()
    {
#pragma unroll 1
        for (int layer = 0; layer < L; layer++) {
            const bool waits = ONE_HEAD && layer == 0;  // no kernel writes weights; the previous step writes keys
            if (!ONE_HEAD && layer == 0) step.wait_for_input();
#pragma unroll 1
            for (int head = step.cluster; head < NH; head += CLUSTERS) {
                qkv(layer, head);
                if (!waits) keys(layer, head);
                projection(layer, head);
            }
            mlp(layer);
            if (waits) {
                step.wait_for_input();
                if (step.cluster < NH) keys(layer, step.cluster);
            }
            if constexpr (EARLY_TILES > 0 && L > 1) tiles_of_the_head(layer);
            prefetch_head(layer);
        }
        head();
    }

    // Prefetches into L2, while memory is idle: rows of the head beyond those that fit into shared memory. Layers of eight bits
    // leave memory idle long enough for the last half of them to do so; earlier prefetches would be evicted again.
    __device__ __forceinline__ void prefetch_head(int layer)
    {
        constexpr int FIRST = SCALED ? L / 2 : 0;
        // perhaps never true: layers of 16 bits all do so
        if (HEAD_AHEAD == 0 || layer < FIRST) return;
        const int own = step.vocabulary.count(blockIdx.x);
        const int each = HEAD_AHEAD * 1024 / (SIZE * C), first = SLOTS * 8 + (layer - FIRST) * each,
                  count = min(each, own - first);
        // perhaps never true: few tokens fit into shared memory
        if (count > 0)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                             step.m.head_w + size_t(step.vocabulary.begin(blockIdx.x) + first) * C),
                         "r"(count * C * SIZE)
                         : "memory");
    }
};

}  // namespace decode::clusters
