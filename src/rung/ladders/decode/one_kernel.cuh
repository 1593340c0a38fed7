// A whole step for one sequence by persistent blocks, one per multiprocessor. A rung that includes this has chosen how weights
// are loaded (weights_*.cuh), how blocks exchange data (exchange_*.cuh), and how rows are multiplied (products_*.cuh). The code
// of a layer must be short: code that does not fit into the instruction cache is fetched again in every layer.
#pragma once
#include "exchanged_attention.cuh"
#include "hidden_vector.cuh"
#include "residual_vector.cuh"

namespace decode {

static_assert(B == 1, "one sequence");

// ---- the head ---------------------------------------------------------------------------------------------------

// Each block sends its largest logit to the first block, which picks the token.
__device__ __forceinline__ void pick(const Model& m, const Mailboxes& mailboxes, Best best, uint32_t epoch)
{
    __shared__ Best winners[STEP_WARPS];
    best = warp_best(best);
    if (lane_id() == 0) winners[warp_id()] = best;
    sync_computing();
    if (threadIdx.x == 0) {
        for (int w = 1; w < STEP_WARPS; w++) best = better(best, winners[w]);
        send(mailboxes.best + blockIdx.x, __float_as_uint(best.value), uint32_t(best.index), 0, epoch);
    }
    all_have_sent();
    if (blockIdx.x > 0 || warp_id() > 0) return;
    // perhaps never several turns: the check's grids have few blocks
    for (int i = lane_id(); i < int(gridDim.x); i += WARP_SIZE) {
        Packet got[1];
        receive(got, epoch, [&](int) { return mailboxes.best + i; });
        best = better(best, {__uint_as_float(got[0].word[0]), int(got[0].word[1])});
    }
    best = warp_best(best);
    if (lane_id() == 0) *m.next = best.index;
}

// ---- the step ---------------------------------------------------------------------------------------------------

struct Step
{
    const Model& m;
    const Mailboxes& mailboxes;  // in shared memory, like the next: registers are needed for values that are used more often
    const BlockRows& block_rows;
    const SharedLayout layout;
    WeightSource source;
    int length = 0;      // known when the previous step has ended, like the next
    uint32_t epoch = 0;  // the first of the layer

    // The code before this call runs while the previous step does.
    __device__ __forceinline__ void wait_for_input()
    {
        pdl_wait();
        length = load_fresh(m.lengths);
    }

    __device__ __forceinline__ uint32_t epoch_of(int phase, int PhaseSpec::* which) const
    {
        return epoch + entry(phase, [&](const PhaseSpec& spec) { return spec.*which; });
    }

    // Keys and values are for later steps, too.
    __device__ __forceinline__ void cache(int layer, int row, float x) const
    {
        const int which = row / C, channel = row % C;
        Real* to = which == 1 ? m.k_cache : m.v_cache;
        if (which > 0) to[cached(layer, 0, channel / HS, length) + channel % HS] = from_float<Real>(x);
    }

    // What a thread sends of a batch of rows, computed before the rows' sums are ready. Four lanes form one packet, three of them
    // with a word each, of one or two elements. A block with fewer rows than others sends empty packets, so that all receive the
    // same number.
    struct PendingOutput
    {
        Packet* to;
        int row;           // of the batch; words of hidden units hold two
        bool some, sends;  // whether there is such a row, and whether the lane sends a packet
        float bias[2], residual, scale[2];
    };

    __device__ __forceinline__ PendingOutput prepare_output(int phase, int layer, const Weights& w, int first, const Real* biases,
                                                            int thread) const
    {
        const bool wide = has(phase, Epilogue::ACTIVATE) && HIDDEN_IN_WORD > 1;
        const int word = thread / 4 * 3 + thread % 4;
        const int each = phase == QKV ? mailboxes.qkv.each : phase == FC ? mailboxes.hidden.each : mailboxes.after_mlp.each;
        Packet* to = phase == QKV    ? mailboxes.qkv.packets
                     : phase == PROJ ? mailboxes.after_attention.packets
                     : phase == FC   ? mailboxes.hidden.packets
                                     : mailboxes.after_mlp.packets;
        const int before = wide ? first / 6 : first / 3;
        const int packet_count = first + BATCH < w.rows ? (wide ? BATCH / 6 : BATCH / 3) : each - before;
        PendingOutput output;
        output.to = to + blockIdx.x * each + before + thread / 4;
        output.sends = thread % 4 == 0 && thread / 4 < packet_count;
        output.row = wide ? 2 * word : word;
        output.some = thread % 4 < 3 && output.row < min(BATCH, w.rows - first);
#pragma unroll
        for (int j = 0; j < 2; j++) output.bias[j] = to_float(biases[first + max(0, min(output.row + j, w.rows - first - 1))]);
#pragma unroll
        for (int j = 0; j < 2; j++) output.scale[j] = block_rows.scale(m, phase, layer, first + output.row + j);
        output.residual = output.some && has(phase, Epilogue::ADD_RESIDUAL) ? layout.residual[first + output.row] : 0.0f;
        return output;
    }

    __device__ __forceinline__ void send_output(int phase, int layer, const PendingOutput& output, const float* sums, int first,
                                                int begin, uint32_t sent) const
    {
        const bool activates = has(phase, Epilogue::ACTIVATE);
        float out[2] = {};
        if (output.some) {
            out[0] = scaled(whole_sum(sums, output.row), output.scale[0]) + output.bias[0];
            if (activates) {
                if (HIDDEN_IN_WORD > 1)
                    out[1] = activated(scaled(whole_sum(sums, output.row + 1), output.scale[1]) + output.bias[1]);
                out[0] = activated(out[0]);
            } else {
                out[0] += output.residual;
            }
        }
        const uint32_t word = activates ? hidden_word(out[0], out[1]) : __float_as_uint(out[0]);
        const uint32_t second = __shfl_down_sync(ALL_LANES, word, 1), third = __shfl_down_sync(ALL_LANES, word, 2);
        if (output.sends) send(output.to, word, second, third, sent);
        if (!output.some || activates) return;
        if (has(phase, Epilogue::CACHE))
            cache(layer, begin + first + output.row, out[0]);
        else
            layout.residual[first + output.row] = out[0];
    }

    // Logits go to memory, and each thread keeps its largest.
    __device__ __forceinline__ void write_logits(const Weights& w, const float* sums, int first, int rows, float scale,
                                                 Best& best) const
    {
        // perhaps never several turns: a batch mostly has no more rows than the block threads
        for (int row = threadIdx.x; row < rows; row += THREADS) {
            const int token = w.begin + first + row;
            const float own = row == int(threadIdx.x) ? scale : block_rows.scale(m, HEAD, 0, first + row);
            const float logit = scaled(whole_sum(sums, row), own);
            m.logits[token] = logit;
            best = better(best, {logit, token});
        }
    }

    // Writes the phase's input vector to shared memory.
    __device__ __forceinline__ void receive_input(int phase, bool embedding, const Vector& x, ResidualVector& residual,
                                                  const Hidden& hidden, int key_ranges, bool attended, const Real* token,
                                                  const Real* position, const Weights& w)
    {
        const auto awaited = [&] { return epoch_of(phase, &PhaseSpec::awaited); };
        if (has(phase, Input::ATTENTION)) {
            if (!attended) delay_polling(POLL_DELAY_IDLE_CYCLES);
            receive_attention<ceil_div(C / OUTPUTS, THREADS)>(mailboxes, [&](int) { return key_ranges; }, x, awaited());
        } else if (has(phase, Input::HIDDEN)) {
            delay_polling(POLL_DELAY_HIDDEN_CYCLES);
            hidden.receive_from(mailboxes.hidden, x, awaited());
        } else {
            if (!embedding) delay_polling(POLL_DELAY_STREAM_CYCLES);
            if (embedding)
                residual.embed(token, position);
            else
                residual.receive_from(phase == FC ? mailboxes.after_attention.packets : mailboxes.after_mlp.packets,
                                      mailboxes.after_mlp.count(), awaited());
            source.watch.start(NORM);
            residual.normalise(x, source.gain(w), source.shift(w), m.eps);
        }
    }

    // The block's rows times the vector, one batch at a time, with the epilogue.
    __device__ __forceinline__ void multiply_and_send(int phase, int layer, const Weights& w, const Vector& x,
                                                      PendingOutput& output, int& parity, Best& best)
    {
#pragma unroll 1
        for (int first = 0; first == 0 || first < w.rows; first += BATCH, parity ^= 1) {
            const int rows = min(BATCH, w.rows - first);
            float* sums = layout.partial + parity * STEP_WARPS * BATCH;
            const float scale = phase == HEAD ? block_rows.scale(m, HEAD, 0, first + threadIdx.x) : 1.0f;
            multiply(source, w, x, sums, first, rows);
            sync_computing();
            source.watch.start(SENDING);
            if (phase == HEAD) {
                write_logits(w, sums, first, rows, scale, best);
            } else {
                const uint32_t sent = epoch_of(phase, &PhaseSpec::sent);
                const auto biases = [&] { return block_rows.weights(m, phase, layer).bias; };
                if (first > 0) output = prepare_output(phase, layer, w, first, biases(), threadIdx.x);
                send_output(phase, layer, output, sums, first, w.begin, sent);
                for (int later = THREADS; later < 4 * (BATCH / 3 + 1); later += THREADS) {  // only with few warps
                    output = prepare_output(phase, layer, w, first, biases(), threadIdx.x + later);
                    send_output(phase, layer, output, sums, first, w.begin, sent);
                }
            }
            source.watch.start(PRODUCTS);
        }
    }

    __device__ __forceinline__ void compute(const int* clock)
    {
        ResidualVector residual;
        Hidden hidden;
        Best best = {-INFINITY, INT_MAX};
        residual.look_up(mailboxes.after_mlp);
        hidden.look_up(mailboxes.hidden);
        const unsigned origin = Attention::origin_of(mailboxes, min(int(blockIdx.x) / mailboxes.key_parts, NH - 1), threadIdx.x);
        source.watch.start(MAIL);
        wait_for_input();
        source.watch.start(SENDING);
        epoch = uint32_t(load_fresh(clock + blockIdx.x)) + 1;
        const KeyParts parts(length, mailboxes.key_parts);
        const Real *token = m.wte + size_t(load_fresh(m.tokens)) * C, *position = m.wpe + size_t(length) * C;
        // perhaps never several turns: a block mostly has fewer channels than threads
        for (int i = threadIdx.x; i < block_rows.of[PROJ].y; i += THREADS) {
            const int channel = block_rows.of[PROJ].x + i;
            layout.residual[i] = to_float(token[channel]) + to_float(position[channel]);
        }
        const KeyRange own(parts, mailboxes.key_parts, length, blockIdx.x);
        int parity = 0;
#pragma unroll 1
        for (int phase_index = 0; phase_index <= PHASES * L; phase_index++) {  // all phases run the same code: see above
            const int layer = phase_index / PHASES, phase = phase_index == PHASES * L ? int(HEAD) : phase_index % PHASES;
            const Weights w = COPY_WARPS > 0 ? Weights(block_rows.of[phase], phase == FC2 ? PARTS : 1)
                                             : block_rows.weights(m, phase, phase == HEAD ? 0 : layer);
            const Vector x = {layout.vector, phase != FC2 ? C : TWO_TERM_TF32 ? F : 0};
            source.watch.start(phase, SENDING);
            source.await();
            PendingOutput output;
            if (phase < HEAD) output = prepare_output(phase, layer, w, 0, source.bias(w), opaque(threadIdx.x));
            source.watch.start(MAIL);
            receive_input(phase, phase_index == 0, x, residual, hidden, parts.count, own.wanted, token, position, w);
            source.release(Weights::EXTRAS);
            sync_computing();
            source.watch.start(PRODUCTS);
            multiply_and_send(phase, layer, w, x, output, parity, best);
            if (phase < HEAD) all_have_sent();
            if (phase == FC2) epoch += EPOCHS_OF_LAYER;
            if (phase == QKV) attend(layer, parts, own, origin);
        }
        source.watch.start(MAIL);
        pick(m, mailboxes, best, epoch);
    }

    // The block's ranges of keys: most blocks have one or none.
    __device__ __forceinline__ void attend(int layer, const KeyParts& parts, const KeyRange& own, unsigned origin)
    {
#pragma unroll 1
        // perhaps never skipped: there may be items for every block
        for (int item = blockIdx.x; item < NH * mailboxes.key_parts; item += gridDim.x) {
            KeyRange range = own;
            unsigned from = origin;
            if (item != int(blockIdx.x))
                range = KeyRange(parts, mailboxes.key_parts, length, item),
                from = Attention::origin_of(mailboxes, range.head, threadIdx.x);
            if (range.wanted) Attention::run(m, source, mailboxes, range, {}, from, layer, item, epoch);
        }
        all_have_sent();
    }
};

// The producer thread's copies, in the order of their use.
template <class Source>
__device__ __forceinline__ void copy_all(Step& step, int* spent)
{
    __shared__ int sizes[Source::UNITS];
    typename Source::Copier copier = {step.source, sizes};
    const Model& m = step.m;
#pragma unroll 1
    for (int layer = 0; layer < L; layer++) {
#pragma unroll 1
        for (int phase = QKV; phase < PHASES; phase++) {
            copier.copy(step.block_rows.weights(m, phase, layer));
            if (phase > QKV) continue;
            if (layer == 0) step.wait_for_input();  // no kernel writes weights; the previous step writes keys
            const KeyParts parts(step.length, step.mailboxes.key_parts);
#pragma unroll 1
            // perhaps never skipped: there may be items for every block
            for (int item = blockIdx.x; item < NH * step.mailboxes.key_parts; item += gridDim.x) {
                const KeyRange range(parts, step.mailboxes.key_parts, step.length, item);
#pragma unroll 1
                // perhaps never several turns: a unit may hold a part of the keys
                for (int first = range.first; range.wanted && first < range.end; first += KEY_GROUP) {
                    const size_t begin = cached(layer, 0, range.head, first);
                    copier.copy_keys(m.k_cache + begin, m.v_cache + begin, min(KEY_GROUP, range.end - first));
                }
            }
        }
    }
    copier.copy(step.block_rows.weights(m, HEAD, 0));
    copier.ring.watch.stop(spent, COPIES, COPIES);
}

template <class Source>
__device__ __forceinline__ void run_copying_warp(Step& step, int* spent)
{
    if constexpr (COPY_WARPS > 0) {
        if (Source::elected()) copy_all<Source>(step, spent);
    }
}

__device__ __forceinline__ void whole_step(const Model& m, Packet* packets, int* clock, int* spent)
{
    extern __shared__ uint4 shared[];
    __shared__ uint4 mailboxes_storage[(sizeof(Mailboxes) + 15) / 16], block_rows_storage[(sizeof(BlockRows) + 15) / 16];
    Mailboxes& mailboxes = *reinterpret_cast<Mailboxes*>(mailboxes_storage);
    BlockRows& block_rows = *reinterpret_cast<BlockRows*>(block_rows_storage);
    const SharedLayout layout(shared);
    pdl_launch_dependents();
    const bool copying = COPY_WARPS > 0 && warp_id() == STEP_WARPS;
    const int first = copying ? int(COPIES) : int(QKV), last = copying ? int(COPIES) : int(ATTENTION);  // rows of the thread
    Step step = {m, mailboxes, block_rows, layout,
                 WeightSource(layout.staged, Watch(copying || threadIdx.x == 0, first, last, SENDING))};
    if (threadIdx.x == 0) mailboxes = Mailboxes(packets);
    if (threadIdx.x == (STEP_WARPS - 1) * WARP_SIZE) block_rows = BlockRows();
    step.source.set_up(copying);
    __syncthreads();
    if (copying) {
        run_copying_warp<WeightSource>(step, spent);
        return;
    }
    step.compute(clock);
    step.source.watch.stop(spent, first, last);
    // Each block has its own clock: nothing orders one block's read before another's write.
    if (threadIdx.x == 0) clock[blockIdx.x] = int(step.epoch);
}

}  // namespace decode
