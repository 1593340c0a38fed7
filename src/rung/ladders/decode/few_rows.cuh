// A whole step for up to eight rows by persistent blocks, one per multiprocessor: rows are texts, or consecutive tokens of a
// text. Weights come through the ring and are multiplied by all rows at once. Between phases there is a grid barrier, and results
// are in memory, so that a row sees the keys and values that earlier rows have just written to the cache.
#pragma once
#include "phases.cuh"

namespace decode {

static_assert(B <= 8 && B <= STEP_WARPS, "a warp for each row");

constexpr int MOST_PARTS = 4;  // of a head's keys
constexpr int PART_FLOATS = HS + 4;
// From one row's vector to the next: with this stride, lanes that read words of several rows at once have few bank conflicts.
constexpr int APART =
    (HIDDEN_PARTS * F > (WITH_REST ? 2 : 1) * C ? HIDDEN_PARTS * F : (WITH_REST ? 2 : 1) * C) + 64 / int(sizeof(Factor));

// A counter that only grows: a block arrives by adding one, and all have arrived when it is `target`.
struct GridBarrier
{
    unsigned* counter;
    unsigned target;  // of the previous barrier

    // What any thread wrote before it is visible to all threads of all blocks after it.
    __device__ __forceinline__ void operator()()
    {
        sync_computing();
        target += gridDim.x;
        if (threadIdx.x == 0) {
            asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
            unsigned arrived;
            do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
            while (int(arrived - target) < 0);
        }
        sync_computing();
    }
};

struct RowsLayout
{
    uint4* staged;
    Factor* vectors;
    float *partial, *residual;  // sums of the warps; for each row, the block's own channels of the residual stream

    __device__ __forceinline__ explicit RowsLayout(uint4* shared)
    {
        staged = shared;
        vectors = reinterpret_cast<Factor*>(staged + STAGED_PIECES);
        partial = reinterpret_cast<float*>(vectors + B * APART);
        residual = partial + B * STEP_WARPS * BATCH;
    }
};

// Data exchanged between blocks.
struct Exchange
{
    float *x, *q, *parts;  // (B, C), (B, C), (B, NH, MOST_PARTS, PART_FLOATS)
    Factor* h;             // (B, F)
    float* best_value;     // (B, blocks)
    int* best_index;
};

struct FewRowsStep
{
    const Model& m;
    const int *texts, *caches;  // for each row the first row of its text, which gives length and cache slot
    const Exchange& to;
    const BlockRows& block_rows;
    const RowsLayout layout;
    WeightSource source;
    GridBarrier barrier;

    struct Place
    {
        int cache, position;
        bool inside;  // of the cache: the result of a row beyond it is meaningless, but it must not affect others
    };
    __device__ __forceinline__ Place place(int b) const
    {
        const int first = load_fresh(texts + b), position = load_fresh(m.lengths + first) + b - first;
        return {load_fresh(caches + first), min(position, MAXT - 1), position < MAXT};
    }

    __device__ __forceinline__ float4 embedded(int b, int channel) const
    {
        const float4 e = four_floats(m.wte + size_t(load_fresh(m.tokens + b)) * C + channel);
        const float4 p = four_floats(m.wpe + size_t(place(b).position) * C + channel);
        return make_float4(e.x + p.x, e.y + p.y, e.z + p.z, e.w + p.w);
    }

    // ---- inputs of a phase ---------------------------------------------------------------------------------------------------

    static __device__ __forceinline__ void set4(const Vector& x, int b, int at, float4 v)
    {
        x.set(b, at, v.x), x.set(b, at + 1, v.y), x.set(b, at + 2, v.z), x.set(b, at + 3, v.w);
    }

    // One warp per row.
    __device__ __forceinline__ void normalise(const Vector& x, bool embedding, const Weights& w)
    {
        constexpr int EACH = ceil_div(C / 4, WARP_SIZE);
        const int b = warp_id();
        float4 v[EACH];
        if (b < B) {
            const float4* from = reinterpret_cast<const float4*>(to.x + b * C);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int f = min(lane_id() + i * WARP_SIZE, C / 4 - 1);
                v[i] = embedding ? embedded(b, 4 * f) : load_fresh(from + f);
            }
        }
        source.await();  // gain and shift
        if (b >= B) return;
        source.watch.start(NORM);
        const auto own = [&](int i) { return lane_id() + i * WARP_SIZE < C / 4; };
        float sum = 0.0f, squares = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) sum += own(i) ? (v[i].x + v[i].y) + (v[i].z + v[i].w) : 0.0f;
        const float mean = warp_sum(sum) / C;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float4 d = make_float4(v[i].x - mean, v[i].y - mean, v[i].z - mean, v[i].w - mean);
            squares += own(i) ? (d.x * d.x + d.y * d.y) + (d.z * d.z + d.w * d.w) : 0.0f;
        }
        const Norm norm = {mean, rsqrtf(warp_sum(squares) / C + m.eps)};
        const Real *gain = source.gain(w), *shift = source.shift(w);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = 4 * (lane_id() + i * WARP_SIZE);
            if (own(i)) set4(x, b, at, normalised(v[i], norm, four_floats(gain + at), four_floats(shift + at)));
        }
    }

    __device__ __forceinline__ int parts_of(int length) const
    {
        const int most = min(MOST_PARTS, max(1, int(gridDim.x) / (B * NH)));
        return max(1, min(most, ceil_div(length, KEY_PART)));
    }

    __device__ __forceinline__ void take_attention(const Vector& x)
    {
#pragma unroll 1
        for (int i = threadIdx.x; i < B * C / 4; i += THREADS) {
            const int b = i / (C / 4), channel = i % (C / 4) * 4;
            const float* parts = to.parts + (size_t(b) * NH + channel / HS) * (MOST_PARTS * PART_FLOATS);
            set4(x, b, channel, merged<MOST_PARTS>(parts, parts_of(place(b).position + 1), channel % HS));
        }
        source.await();
    }

    __device__ __forceinline__ void take_hidden(const Vector& x)
    {
        constexpr int EACH = 16 / sizeof(Factor);
#pragma unroll 4
        for (int i = threadIdx.x; i < B * F / EACH; i += THREADS) {
            const int b = i / (F / EACH), at = i % (F / EACH) * EACH;
            const uint4 bits = __ldcg(reinterpret_cast<const uint4*>(to.h + size_t(b) * F + at));
            if (!TWO_TERM_TF32) {
                *reinterpret_cast<uint4*>(x.numbers + b * x.apart + at) = bits;
                continue;
            }
            const uint32_t word[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
                // perhaps never false: numbers of two terms are floats, four in a piece
                if (j < EACH) x.set(b, at + j, __uint_as_float(word[j]));
        }
        source.await();
    }

    // ---- outputs of a phase --------------------------------------------------------------------------------------------------

    // The block's rows of the matrix times all vectors, one batch at a time; warp b then has the results of row b.
    __device__ __forceinline__ void multiply_all(int phase, int layer, const Weights& w, const Vector& x, float* biases,
                                                 Best& best)
    {
        const int b = warp_id();
        const Place at = b < B ? place(b) : Place{0, 0, false};
#pragma unroll 1
        for (int first = 0; first == 0 || first < w.rows; first += BATCH) {
            const int rows = min(BATCH, w.rows - first);
            multiply(source, w, x, layout.partial, first, rows);
            if (first > 0 && phase < HEAD)
                // perhaps never several turns: a batch mostly has no more rows than the block threads
                for (int i = threadIdx.x; i < rows; i += THREADS)
                    biases[i] = to_float(block_rows.weights(m, phase, layer).bias[first + i]);
            sync_computing();
            source.watch.start(SENDING);
            for (int i = lane_id(); b < B && i < rows; i += WARP_SIZE) {
                const float sum = scaled(whole_sum(layout.partial, i, b), block_rows.scale(m, phase, layer, first + i));
                give(phase, layer, b, at, w.begin + first + i, first + i, phase < HEAD ? sum + biases[i] : sum, best);
            }
            sync_computing();
            source.watch.start(PRODUCTS);
        }
    }

    __device__ __forceinline__ void give(int phase, int layer, int b, const Place& at, int row, int own, float sum, Best& best)
    {
        if (phase == HEAD) {
            m.logits[size_t(b) * V + row] = sum;
            best = better(best, {sum, row});
        } else if (has(phase, Epilogue::ACTIVATE)) {
            to.h[size_t(b) * F + row] = from_float<Factor>(within_range(activate<ACT>(sum)));
        } else if (has(phase, Epilogue::ADD_RESIDUAL)) {
            float& residual = layout.residual[b * block_rows.of[PROJ].y + own];
            residual += sum;
            to.x[b * C + row] = residual;
        } else if (row < C) {
            to.q[b * C + row] = sum;
        } else if (at.inside) {
            Real* cache = row < 2 * C ? m.k_cache : m.v_cache;
            cache[cached(layer, at.cache, row % C / HS, at.position) + row % C % HS] = from_float<Real>(sum);
        }
    }

    // One part of the keys of a head, row after row; the warps of a block divide the keys.
    __device__ __forceinline__ void attend(int layer)
    {
        using Share = Keys<KEY_LOADS>;
        const float scale = BY_LAYER ? m.scale / (layer + 1) : m.scale;
        const int lane = lane_id(), warp = warp_id();
#pragma unroll 1
        // perhaps never skipped: there may be items for every block
        for (int item = blockIdx.x; item < B * NH * MOST_PARTS; item += gridDim.x) {
            // All first parts come before all second ones, so few blocks have two non-empty parts.
            const int head = item % NH, b = item / NH % B, part = item / (NH * B);
            const Place at = place(b);
            const int length = at.position + 1, parts = parts_of(length), share = ceil_div(length, parts);
            if (part >= parts) continue;
            const size_t begins = cached(layer, at.cache, head, 0);
            const int end = min(length, (part + 1) * share);
            float query[VEC], sum[VEC] = {}, largest = -INFINITY, total = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC; j++) query[j] = load_fresh(to.q + b * C + head * HS + lane % Share::LANES * VEC + j);
#pragma unroll 1
            // perhaps never several turns: the warps mostly take a part of the keys at once
            for (int first = part * share + warp * Share::COUNT; first < end; first += STEP_WARPS * Share::COUNT) {
                Share keys;
                float y[VEC], top, l;
                keys.request(m.k_cache + begins, m.v_cache + begins, first, 0, end, lane);
                keys.attend(query, scale, first, end, lane, top, l, y);
                const float higher = fmaxf(top, largest), old = __expf(largest - higher), now = __expf(top - higher);
                total = total * old + l * now, largest = higher;
#pragma unroll
                for (int j = 0; j < VEC; j++) sum[j] = sum[j] * old + y[j] * now;
            }
            float* part_to = to.parts + ((size_t(b) * NH + head) * MOST_PARTS + part) * PART_FLOATS;
            store_part<STEP_WARPS>(part_to, largest, total, sum, lane, warp, [] { sync_computing(); });
            sync_computing();  // the next part uses the same memory
        }
    }

    // The first of a row's largest logits, from those of the blocks.
    __device__ __forceinline__ void pick(Best best)
    {
        best = warp_best(best);
        const int own = warp_id() * int(gridDim.x) + int(blockIdx.x);
        if (warp_id() < B && lane_id() == 0) to.best_value[own] = best.value, to.best_index[own] = best.index;
        barrier();
        for (int b = blockIdx.x; warp_id() == 0 && b < B; b += gridDim.x) {
            best = {-INFINITY, INT_MAX};
            // perhaps never several turns: the check's grids have few blocks
            for (int i = b * int(gridDim.x) + lane_id(); i < (b + 1) * int(gridDim.x); i += WARP_SIZE)
                best = better(best, {load_fresh(to.best_value + i), load_fresh(to.best_index + i)});
            best = warp_best(best);
            if (lane_id() == 0) m.next[b] = best.index;
        }
    }

    // ---- the step ------------------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void compute(int* clock)
    {
        __shared__ float biases[BATCH];
        source.watch.start(MAIL);
        pdl_wait();
        barrier.target = unsigned(load_fresh(clock));
        const int2 channels = block_rows.of[PROJ];
        // perhaps never several turns: a block mostly has fewer channels than threads
        for (int i = threadIdx.x; i < B * channels.y; i += THREADS) {
            const int b = i / channels.y, channel = channels.x + i % channels.y;
            layout.residual[i] = to_float(m.wte[size_t(load_fresh(m.tokens + b)) * C + channel]) +
                                 to_float(m.wpe[size_t(place(b).position) * C + channel]);
        }
        Best best = {-INFINITY, INT_MAX};
#pragma unroll 1
        for (int index = 0; index <= PHASES * L; index++) {  // all phases run the same code, as in one_kernel.cuh
            const int phase = index == PHASES * L ? int(HEAD) : index % PHASES, layer = phase == HEAD ? 0 : index / PHASES;
            const Weights w(block_rows.of[phase], phase == FC2 ? PARTS : 1);
            const Vector x = {layout.vectors, phase == FC2 ? (TWO_TERM_TF32 ? F : 0) : WITH_REST ? C : 0, APART};
            source.watch.start(phase, MAIL);
            if (has(phase, Input::ATTENTION))
                take_attention(x);
            else if (has(phase, Input::HIDDEN))
                take_hidden(x);
            else
                normalise(x, index == 0, w);
            // perhaps never several turns: a batch mostly has no more rows than the block threads
            for (int i = threadIdx.x; phase < HEAD && i < min(BATCH, w.rows); i += THREADS)
                biases[i] = to_float(source.bias(w)[i]);
            source.release(Weights::EXTRAS);
            sync_computing();
            source.watch.start(PRODUCTS);
            multiply_all(phase, layer, w, x, biases, best);
            source.watch.start(MAIL);
            if (phase < HEAD) barrier();
            if (phase != QKV) continue;
            source.watch.start(ATTENTION, PRODUCTS);
            attend(layer);
            source.watch.start(MAIL);
            barrier();
        }
        pick(best);
        // All blocks have read the clock before the first barrier.
        if (blockIdx.x == 0 && threadIdx.x == 0) *clock = int(barrier.target);
    }

    __device__ __forceinline__ void copy_all(int* spent)
    {
        __shared__ int sizes[WeightSource::UNITS];
        WeightSource::Copier copier = {source, sizes};
#pragma unroll 1
        for (int index = 0; index <= PHASES * L; index++) {
            const int phase = index == PHASES * L ? int(HEAD) : index % PHASES, layer = phase == HEAD ? 0 : index / PHASES;
            copier.copy(block_rows.weights(m, phase, layer));
        }
        copier.ring.watch.stop(spent, COPIES, COPIES);
    }
};

__device__ __forceinline__ void few_rows_step(const Model& m, const int* texts, const int* caches, const Exchange& to,
                                              int* counter, int* clock, int* spent)
{
    extern __shared__ uint4 shared[];
    __shared__ uint4 block_rows_storage[(sizeof(BlockRows) + 15) / 16];
    BlockRows& block_rows = *reinterpret_cast<BlockRows*>(block_rows_storage);
    const RowsLayout layout(shared);
    pdl_launch_dependents();
    const bool copying = warp_id() == STEP_WARPS;
    const int first = copying ? int(COPIES) : int(QKV), last = copying ? int(COPIES) : int(ATTENTION);
    FewRowsStep step = {m,
                        texts,
                        caches,
                        to,
                        block_rows,
                        layout,
                        WeightSource(layout.staged, Watch(copying || threadIdx.x == 0, first, last, SENDING)),
                        {reinterpret_cast<unsigned*>(counter), 0}};
    if (threadIdx.x == 0) block_rows = BlockRows();
    step.source.set_up(copying);
    __syncthreads();
    if (copying) {
        if (WeightSource::elected()) step.copy_all(spent);
        return;
    }
    step.compute(clock);
    step.source.watch.stop(spent, first, last);
}

}  // namespace decode
