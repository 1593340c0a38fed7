// A whole step for up to eight rows by persistent blocks, one per multiprocessor: rows are texts, or consecutive tokens of a
// text. Weights and cached keys come through the ring, and weights are multiplied by all rows at once. Blocks exchange results as
// packets, with one mailbox per row: a row reads the new keys and values of earlier rows there, and older ones from the cache.
#pragma once
#include "few_rows_input.cuh"

namespace decode {

struct FewRowsStep : FewRowsInput
{
    // Bias and scale of the thread's row of a batch, loaded before the row's sums are known.
    __device__ __forceinline__ float2 ends_of(int phase, int layer, int first, int rows, const Real* biases) const
    {
        const int i = threadIdx.x;
        if (i >= rows) return make_float2(0.0f, 0.0f);
        return make_float2(phase < HEAD ? to_float(biases[first + i]) : 0.0f, block_rows.scale(m, phase, layer, first + i));
    }

    // The block's rows of the matrix times all vectors, one batch at a time; a row's sums are sent by its own warps.
    __device__ __forceinline__ void multiply_and_send(int phase, int layer, const Weights& w, const Vector& x, float2 own,
                                                      Outgoing to, Best& best)
    {
        __shared__ float2 ends[BATCH];
        const int b = warp_id() / WARPS_OF_ROW, warp_of_row = warp_id() % WARPS_OF_ROW;
#pragma unroll 1
        for (int first = 0; first == 0 || first < w.rows; first += BATCH) {
            const int rows = min(BATCH, w.rows - first);
            if (first > 0) {
                own = ends_of(phase, layer, first, rows, block_rows.weights(m, phase, layer).bias);
                to = outgoing(phase, w, b, first);
            }
            if (threadIdx.x < BATCH) ends[threadIdx.x] = own;
            multiply(source, w, x, layout.partial, first, rows);
            sync_computing();
            source.watch.start(SENDING);
            const auto sum_of = [&](int row) { return scaled(whole_sum(layout.partial, row, b), ends[row].y) + ends[row].x; };
            if (b < B && phase == HEAD) {
                for (int row = warp_of_row * WARP_SIZE + lane_id(); row < rows; row += LANES_OF_ROW) {
                    const float logit = sum_of(row);
                    m.logits[size_t(b) * V + w.begin + first + row] = logit;
                    best = better(best, {logit, w.begin + first + row});
                }
                // perhaps never false: the block's warps are mostly a multiple of the rows
            } else if (b < B) {
                send_batch(phase, layer, w, to, b, warp_of_row, first, rows, sum_of);
            }
            if (first + BATCH < w.rows) sync_computing();
            source.watch.start(PRODUCTS);
        }
    }

    // A block with fewer rows than others sends empty packets, so that all receive the same number.
    __device__ __forceinline__ Outgoing outgoing(int phase, const Weights& w, int b, int first) const
    {
        const bool activates = has(phase, Epilogue::ACTIVATE), wide = activates && HIDDEN_IN_WORD > 1;
        const int each = phase == QKV ? mailboxes.qkv.each : activates ? mailboxes.hidden.each : mailboxes.after_mlp.each;
        Packet* box = phase == QKV    ? mailboxes.qkv.packets
                      : phase == PROJ ? mailboxes.after_attention.packets
                      : phase == FC   ? mailboxes.hidden.packets
                                      : mailboxes.after_mlp.packets;
        const int before = wide ? first / 6 : first / 3;
        const int packet_count = first + BATCH < w.rows ? (wide ? BATCH / 6 : BATCH / 3) : each - before;
        return {box + (b * int(gridDim.x) + int(blockIdx.x)) * each + before, packet_count, epoch_of(phase, &PhaseSpec::sent),
                activates, wide};
    }

    // Four lanes fill a packet, as in one_kernel.cuh.
    template <class SumOf>
    __device__ __forceinline__ void send_batch(int phase, int layer, const Weights& w, const Outgoing& to, int b, int warp_of_row,
                                               int first, int rows, SumOf sum_of)
    {
        const auto [box, packet_count, sent, activates, wide] = to;
#pragma unroll 1
        for (int packet = warp_of_row * 8 + lane_id() / 4; __any_sync(ALL_LANES, packet < packet_count);
             packet += 8 * WARPS_OF_ROW) {
            const int word = packet * 3 + lane_id() % 4, row = wide ? 2 * word : word;
            const bool some = lane_id() % 4 < 3 && row < rows;
            float out = 0.0f, next = 0.0f;
            if (some) {
                out = sum_of(row);
                // perhaps never true: in float32 a word holds one number
                if (wide) next = activated(sum_of(row + 1));
                if (activates) out = activated(out);
                if (has(phase, Epilogue::ADD_RESIDUAL)) out += layout.residual[b * w.rows + first + row];
            }
            const uint32_t payload = activates ? hidden_word(out, next) : __float_as_uint(out);
            const uint32_t second = __shfl_down_sync(ALL_LANES, payload, 1), third = __shfl_down_sync(ALL_LANES, payload, 2);
            if (lane_id() % 4 == 0 && packet < packet_count) send(box + packet, payload, second, third, sent);
            if (!some || activates) continue;
            if (has(phase, Epilogue::CACHE))
                cache(layer, positions[b], w.begin + first + row, out);
            else
                layout.residual[b * w.rows + first + row] = out;
        }
    }

    // Keys and values are stored for later steps.
    __device__ __forceinline__ void cache(int layer, const RowPosition& at_row, int row, float x) const
    {
        const int which = row / C, channel = row % C;
        Real* to = which == 1 ? m.k_cache : m.v_cache;
        if (which > 0 && at_row.in_cache())
            to[cached(layer, at_row.cache, channel / HS, at_row.position) + channel % HS] = from_float<Real>(x);
    }

    // Each of the block's items: a range of the keys of a head of a row.
    template <class Do>
    __device__ __forceinline__ void for_each_range(Do act) const
    {
#pragma unroll 1
        // perhaps never skipped: there may be items for every block
        for (int item = blockIdx.x; item < B * NH * mailboxes.key_parts; item += gridDim.x) {
            const int b = item / (NH * mailboxes.key_parts);
            const RowPosition& at_row = positions[b];
            const KeyRange range(KeyParts(at_row.cached, mailboxes.key_parts), mailboxes.key_parts, at_row.cached, item);
            if (range.wanted)
                act(range, QueryRow{b, at_row.first, at_row.cache, min(b - at_row.first + 1, MAXT - at_row.cached)}, item);
        }
    }

    // The first of a row's largest logits, from the blocks' largest ones.
    __device__ __forceinline__ void pick(Best best) const
    {
        __shared__ Best winners[STEP_WARPS];
        best = warp_best(best);
        if (lane_id() == 0) winners[warp_id()] = best;
        sync_computing();
        if (threadIdx.x < B) {
            best = winners[threadIdx.x * WARPS_OF_ROW];
            for (int i = 1; i < WARPS_OF_ROW; i++) best = better(best, winners[threadIdx.x * WARPS_OF_ROW + i]);
            Packet* to = mailboxes.best + threadIdx.x * gridDim.x + blockIdx.x;
            send(to, __float_as_uint(best.value), uint32_t(best.index), 0, epoch);
        }
        for (int b = blockIdx.x; warp_id() == 0 && b < B; b += gridDim.x) {
            best = {-INFINITY, INT_MAX};
            // perhaps never several turns: the check's grids have few blocks
            for (int i = lane_id(); i < int(gridDim.x); i += WARP_SIZE) {
                Packet got[1];
                receive(got, epoch, [&](int) { return mailboxes.best + b * gridDim.x + i; });
                best = better(best, {__uint_as_float(got[0].word[0]), int(got[0].word[1])});
            }
            best = warp_best(best);
            if (lane_id() == 0) m.next[b] = best.index;
        }
    }

    // ---- the step ------------------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void compute(const int* texts, const int* caches, const int* clock)
    {
        source.watch.start(MAIL);
        spans.look_up(mailboxes);
        pdl_wait();
        epoch = uint32_t(load_fresh(clock + blockIdx.x)) + 1;
        if (threadIdx.x < B) positions[threadIdx.x].look_up(m, texts, caches, threadIdx.x);
        sync_computing();
        const int2 channels = block_rows.of[PROJ];
        // perhaps never several turns: a block mostly has fewer channels than threads
        for (int i = threadIdx.x; i < B * channels.y; i += THREADS) {
            const int b = i / channels.y, channel = channels.x + i % channels.y;
            layout.residual[i] = to_float(m.wte[size_t(load_fresh(m.tokens + b)) * C + channel]) +
                                 to_float(m.wpe[size_t(min(positions[b].position, MAXT - 1)) * C + channel]);
        }
        Best best = {-INFINITY, INT_MAX};
#pragma unroll 1
        for (int index = 0; index <= PHASES * L; index++) {  // all phases run the same code, as in one_kernel.cuh
            const int phase = index == PHASES * L ? int(HEAD) : index % PHASES, layer = phase == HEAD ? 0 : index / PHASES;
            const Weights w(block_rows.of[phase], phase == FC2 ? PARTS : 1);
            const Vector x = {layout.vectors, phase == FC2 ? (HIDDEN_TERMS > 1 ? F : 0) : STREAM_TERMS > 1 ? C : 0, APART};
            source.watch.start(phase, SENDING);
            source.await();
            const float2 own = ends_of(phase, layer, 0, min(BATCH, w.rows), source.bias(w));
            const Outgoing to = outgoing(phase, w, warp_id() / WARPS_OF_ROW, 0);
            source.watch.start(MAIL);
            take_input(phase, index == 0, x, w);
            source.release(Weights::EXTRAS);
            sync_computing();
            source.watch.start(PRODUCTS);
            multiply_and_send(phase, layer, w, x, own, to, best);
            if (phase == FC2) epoch += EPOCHS_OF_LAYER;
            if (phase != QKV) continue;
            for_each_range([&](const KeyRange& range, const QueryRow& query, int item) {
                const unsigned origin = B == 1 ? Attention::origin_of(mailboxes, range.head, threadIdx.x) : 0;
                Attention::run(m, source, mailboxes, range, query, origin, layer, item, epoch);
            });
        }
        source.watch.start(MAIL);
        pick(best);
    }

    __device__ __forceinline__ void copy_all(const int* texts, const int* caches, int* spent)
    {
        __shared__ int sizes[WeightSource::UNITS];
        WeightSource::Copier copier = {source, sizes};
#pragma unroll 1
        for (int index = 0; index <= PHASES * L; index++) {
            const int phase = index == PHASES * L ? int(HEAD) : index % PHASES, layer = phase == HEAD ? 0 : index / PHASES;
            copier.copy(block_rows.weights(m, phase, layer));
            if (phase != QKV) continue;
            if (layer == 0) {  // weights are never written, keys by the step before
                pdl_wait();
                for (int b = 0; b < B; b++) positions[b].look_up(m, texts, caches, b);
            }
            for_each_range([&](const KeyRange& range, const QueryRow& query, int) {
#pragma unroll 1
                // perhaps never several turns: a unit may hold a part of the keys
                for (int first = range.first; first < range.end; first += KEY_GROUP) {
                    const size_t begin = cached(layer, query.cache, range.head % NH, first);
                    copier.copy_keys(m.k_cache + begin, m.v_cache + begin, min(KEY_GROUP, range.end - first));
                }
            });
        }
        copier.ring.watch.stop(spent, COPIES, COPIES);
    }
};

__device__ __forceinline__ void few_rows_step(const Model& m, const int* texts, const int* caches, Packet* packets, int* clock,
                                              int* spent)
{
    extern __shared__ uint4 shared[];
    __shared__ uint4 mailboxes_storage[(sizeof(Mailboxes) + 15) / 16], block_rows_storage[(sizeof(BlockRows) + 15) / 16];
    __shared__ uint4 spans_storage[(sizeof(Spans) + 15) / 16];
    Spans& spans = *reinterpret_cast<Spans*>(spans_storage);
    __shared__ RowPosition positions[2][B];  // the copying thread has its own copy
    Mailboxes& mailboxes = *reinterpret_cast<Mailboxes*>(mailboxes_storage);
    BlockRows& block_rows = *reinterpret_cast<BlockRows*>(block_rows_storage);
    const RowsLayout layout(shared);
    pdl_launch_dependents();
    const bool copying = warp_id() == STEP_WARPS;
    const int first = copying ? int(COPIES) : int(QKV), last = copying ? int(COPIES) : int(ATTENTION);
    const Watch watch(copying || threadIdx.x == 0, first, last, SENDING);
    FewRowsStep step = {{m, mailboxes, block_rows, spans, positions[copying], layout, WeightSource(layout.staged, watch)}};
    if (threadIdx.x == 0) mailboxes = Mailboxes(packets);
    if (threadIdx.x == (STEP_WARPS - 1) * WARP_SIZE) block_rows = BlockRows();
    step.source.set_up(copying);
    __syncthreads();
    if (copying) {
        if (WeightSource::elected()) step.copy_all(texts, caches, spent);
        return;
    }
    step.compute(texts, caches, clock);
    step.source.watch.stop(spent, first, last);
    if (threadIdx.x == 0) clock[blockIdx.x] = int(step.epoch);
}

}  // namespace decode
