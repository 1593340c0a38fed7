// A whole step for one sequence by blocks that stay: one on each multiprocessor, with the weights of all layers streaming
// through its shared memory, and numbers sent from block to block. What the layers repeat must be short: code that does not
// stay in the instruction cache is fetched again in every layer.
#pragma once
#include "mailed_attention.cuh"
#include "residual_vector.cuh"

namespace decode {

// ---- the MLP ----------------------------------------------------------------------------------------------------

// Hidden numbers as they travel: two halves in a word, or a float.
template <class T>
__device__ __forceinline__ uint32_t packed(float a, float b, const T*) { return pack2<T>(within_range(a), within_range(b)); }
__device__ __forceinline__ uint32_t packed(float a, float, const float*) { return __float_as_uint(a); }
__device__ __forceinline__ uint32_t hidden_word(float a, float b) { return packed(a, b, (const Factor*)nullptr); }

// GELU by tanh without a division that rounds correctly: both of a thread's numbers then go through it side by side.
__device__ __forceinline__ float activated(float x)
{
    if (ACT != 0) return activate<ACT>(x);
    return __fdividef(x, 1.0f + __expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

struct Hidden
{
    static constexpr int HELD = ceil_div(F / HIDDEN + MOST_BLOCKS, THREADS);
    ParcelSpan spans[HELD];

    __device__ __forceinline__ void look_up(const HiddenMailbox& shared)
    {
#pragma unroll
        for (int i = 0; i < HELD; i++) spans[i] = ParcelSpan::of(shared, int(threadIdx.x) + i * THREADS);
    }

    __device__ __forceinline__ void receive_from(const HiddenMailbox& shared, const Vector& to, uint32_t epoch) const
    {
        Parcel got[HELD];
        const int thread = opaque(threadIdx.x);
        receive(got, epoch, [&](int i) { return shared.mail + min(thread + i * THREADS, shared.parcels() - 1); });
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const ParcelSpan span = spans[i].renewed();
#pragma unroll
            for (int j = 0; j < 3; j++) {
                if (j * HIDDEN_IN_WORD >= span.count()) continue;
                if (TWO_TERM_TF32)
                    to.set(span.first() + j, __uint_as_float(got[i].word[j]));
                else
                    reinterpret_cast<uint32_t*>(to.numbers)[span.first() / 2 + j] = got[i].word[j];
            }
        }
    }
};

// ---- the head ---------------------------------------------------------------------------------------------------

// The largest of each block's own goes to the first block, which picks.
__device__ __forceinline__ void pick(const Model& m, const Mailboxes& mail, Best best, uint32_t epoch)
{
    __shared__ Best winners[STEP_WARPS];
    best = warp_best(best);
    if (lane_id() == 0) winners[warp_id()] = best;
    sync_computing();
    if (threadIdx.x == 0) {
        for (int w = 1; w < STEP_WARPS; w++) best = better(best, winners[w]);
        send(mail.best + blockIdx.x, __float_as_uint(best.value), uint32_t(best.index), 0, epoch);
    }
    everyone_has_sent();
    if (blockIdx.x > 0 || warp_id() > 0) return;
    for (int i = lane_id(); i < int(gridDim.x); i += WARP_SIZE) {
        Parcel got[1];
        receive(got, epoch, [&](int) { return mail.best + i; });
        best = better(best, {__uint_as_float(got[0].word[0]), int(got[0].word[1])});
    }
    best = warp_best(best);
    if (lane_id() == 0) *m.next = best.index;
}

// ---- the step ---------------------------------------------------------------------------------------------------

struct Step
{
    const Model& m;
    const Mailboxes& mail;  // in shared memory, as the next: in registers they would push out what is needed more often
    const BlockRows& block_rows;
    const SharedLayout layout;
    Ring ring;
    int length = 0;      // known when the step before has ended, as the next
    uint32_t epoch = 0;  // of the letters that are sent first

    // What lies before this runs while the step before does.
    __device__ __forceinline__ void wait_for_input()
    {
        pdl_wait();
        length = load_fresh(m.lengths);
    }

    // Keys and values are for later steps, too.
    __device__ __forceinline__ void cache(int layer, int row, float x) const
    {
        const int which = row / C, channel = row % C;
        Real* to = which == 1 ? m.k_cache : m.v_cache;
        if (which > 0) to[cached(layer, 0, channel / HS, length) + channel % HS] = from_float<Real>(x);
    }

    // What a thread sends of a batch of rows, found out before the rows' sums are there. The numbers go out in parcels: four
    // lanes make one, three of them a word each, of one number or of two. A block with fewer rows than others sends empty
    // parcels, so that all hear from it.
    struct PendingOutput
    {
        Parcel* to;
        int row;           // of the batch; the hidden numbers' words are of two
        bool some, sends;  // whether there is such a row, and whether the lane has a parcel
        float bias[2], residual, scale[2];
    };

    __device__ __forceinline__ PendingOutput prepare_output(int phase, int layer, const Weights& w, int first, const Real* biases, int thread) const
    {
        const bool wide = phase == FC && HIDDEN_IN_WORD > 1;
        const int word = thread / 4 * 3 + thread % 4;
        const int each = phase == QKV ? mail.qkv.each : phase == FC ? mail.hidden.each : mail.after_mlp.each;
        Parcel* to = phase == QKV ? mail.qkv.mail : phase == PROJ ? mail.after_attention.mail
                     : phase == FC ? mail.hidden.mail : mail.after_mlp.mail;
        const int before = wide ? first / 6 : first / 3;
        const int parcels = first + BATCH < w.rows ? (wide ? BATCH / 6 : BATCH / 3) : each - before;
        PendingOutput output;
        output.to = to + blockIdx.x * each + before + thread / 4;
        output.sends = thread % 4 == 0 && thread / 4 < parcels;
        output.row = wide ? 2 * word : word;
        output.some = thread % 4 < 3 && output.row < min(BATCH, w.rows - first);
#pragma unroll
        for (int j = 0; j < 2; j++) output.bias[j] = to_float(biases[first + max(0, min(output.row + j, w.rows - first - 1))]);
#pragma unroll
        for (int j = 0; j < 2; j++) output.scale[j] = block_rows.scale(m, phase, layer, first + output.row + j);
        output.residual = output.some && (phase == PROJ || phase == FC2) ? layout.residual[first + output.row] : 0.0f;
        return output;
    }

    __device__ __forceinline__ void send_output(int phase, int layer, const PendingOutput& output, const float* sums, int first, int begin,
                                         uint32_t epoch) const
    {
        float out[2] = {};
        if (output.some) {
            out[0] = scaled(whole_sum(sums, output.row), output.scale[0]) + output.bias[0];
            if (phase == FC) {
                if (HIDDEN_IN_WORD > 1)
                    out[1] = activated(scaled(whole_sum(sums, output.row + 1), output.scale[1]) + output.bias[1]);
                out[0] = activated(out[0]);
            } else {
                out[0] += output.residual;
            }
        }
        const uint32_t word = phase == FC ? hidden_word(out[0], out[1]) : __float_as_uint(out[0]);
        const uint32_t second = __shfl_down_sync(ALL_LANES, word, 1), third = __shfl_down_sync(ALL_LANES, word, 2);
        if (output.sends) send(output.to, word, second, third, epoch);
        if (!output.some || phase == FC) return;
        if (phase == QKV)
            cache(layer, begin + first + output.row, out[0]);
        else
            layout.residual[first + output.row] = out[0];
    }

    __device__ __forceinline__ void compute(const int* clock)
    {
        ResidualVector stream;
        Hidden hidden;
        Best best = {-INFINITY, INT_MAX};
        stream.look_up(mail.after_mlp);
        hidden.look_up(mail.hidden);
        const unsigned origin = Attention::origin_of(mail, min(int(blockIdx.x) / mail.key_parts, NH - 1));
        ring.watch.start(MAIL);
        wait_for_input();
        ring.watch.start(SENDING);
        epoch = uint32_t(load_fresh(clock)) + 1;  // as many are sent in every step
        const KeyParts parts(length, mail.key_parts);
        const Real *token = m.wte + size_t(load_fresh(m.tokens)) * C, *position = m.wpe + size_t(length) * C;
        for (int i = threadIdx.x; i < block_rows.of[PROJ].y; i += THREADS) {
            const int channel = block_rows.of[PROJ].x + i;
            layout.residual[i] = to_float(token[channel]) + to_float(position[channel]);
        }
        const KeyRange own(parts, mail.key_parts, length, blockIdx.x);
        int parity = 0;
#pragma unroll 1
        for (int phase_index = 0; phase_index <= PHASES * L; phase_index++) {  // phases, all through the same code: see above
            const int layer = phase_index / PHASES, phase = phase_index == PHASES * L ? int(HEAD) : phase_index % PHASES;
#ifdef RUNG_EMULATOR
            const Weights w = block_rows.weights(m, phase, layer);
#else
            const Weights w(block_rows.of[phase], phase == FC2 ? PARTS : 1);
#endif
            const Vector x = {layout.vector, phase != FC2 ? C : TWO_TERM_TF32 ? F : 0};
            ring.watch.start(phase, SENDING);
            ring.await(ring.unit);
            PendingOutput output;
            if (phase < HEAD) output = prepare_output(phase, layer, w, 0, ring.bias(w), opaque(threadIdx.x));
            ring.watch.start(MAIL);
            if (phase == PROJ) {
                if (!own.wanted) delay_polling(POLL_DELAY_IDLE_CYCLES);
                receive_attention(mail, parts.count, x, epoch + 1);
            } else if (phase == FC2) {
                delay_polling(POLL_DELAY_HIDDEN_CYCLES);
                hidden.receive_from(mail.hidden, x, epoch + 3);
            } else {
                if (phase_index > 0) delay_polling(POLL_DELAY_STREAM_CYCLES);
                if (phase_index == 0)
                    stream.embed(token, position);
                else
                    stream.receive_from(phase == FC ? mail.after_attention.mail : mail.after_mlp.mail, mail.after_mlp.parcels(),
                                        phase == FC ? epoch + 2 : epoch - 1);
                ring.watch.start(NORM);
                stream.normalise(x, ring.gain(w), ring.shift(w), m.eps);
            }
            ring.release(Weights::EXTRAS);
            sync_computing();
            ring.watch.start(PRODUCTS);
#pragma unroll 1
            for (int first = 0; first == 0 || first < w.rows; first += BATCH, parity ^= 1) {
                const int rows = min(BATCH, w.rows - first);
                float* sums = layout.partial + parity * STEP_WARPS * BATCH;
                const float scale = phase == HEAD ? block_rows.scale(m, HEAD, 0, first + threadIdx.x) : 1.0f;
                multiply(ring, w, x, sums, first, rows);
                sync_computing();
                ring.watch.start(SENDING);
                if (phase < HEAD) {
                    const uint32_t of = phase == QKV ? epoch : epoch + 1 + phase;
                    if (first > 0) output = prepare_output(phase, layer, w, first, block_rows.weights(m, phase, layer).bias, threadIdx.x);
                    send_output(phase, layer, output, sums, first, w.begin, of);
                    for (int later = THREADS; later < 4 * (BATCH / 3 + 1); later += THREADS) {  // if there are few warps
                        output = prepare_output(phase, layer, w, first, block_rows.weights(m, phase, layer).bias, threadIdx.x + later);
                        send_output(phase, layer, output, sums, first, w.begin, of);
                    }
                    ring.watch.start(PRODUCTS);
                    continue;
                }
                for (int row = threadIdx.x; row < rows; row += THREADS) {
                    const int token = w.begin + first + row;
                    const float own = row == int(threadIdx.x) ? scale : block_rows.scale(m, HEAD, 0, first + row);
                    const float logit = scaled(whole_sum(sums, row), own);
                    m.logits[token] = logit;
                    best = better(best, {logit, token});
                }
                ring.watch.start(PRODUCTS);
            }
            if (phase < HEAD) everyone_has_sent();
            if (phase == FC2) epoch += 5;
            if (phase != QKV) continue;
#pragma unroll 1
            for (int item = blockIdx.x; item < NH * mail.key_parts; item += gridDim.x) {
                KeyRange part = own;
                unsigned from = origin;
                if (item != int(blockIdx.x))
                    part = KeyRange(parts, mail.key_parts, length, item), from = Attention::origin_of(mail, part.head);
                if (part.wanted) Attention::run(m, ring, mail, part, from, layer, item, epoch);
            }
            everyone_has_sent();
        }
        ring.watch.start(MAIL);
        pick(m, mail, best, epoch);
    }

#ifndef RUNG_EMULATOR
    __device__ __forceinline__ void copy(int* sizes, int* spent)
    {
        Copier copier = {ring, sizes};
#pragma unroll 1
        for (int layer = 0; layer < L; layer++) {
#pragma unroll 1
            for (int phase = QKV; phase < PHASES; phase++) {
                copier.copy(block_rows.weights(m, phase, layer));
                if (phase > QKV) continue;
                if (layer == 0) wait_for_input();  // weights nobody writes, keys the step before
                const KeyParts parts(length, mail.key_parts);
#pragma unroll 1
                for (int item = blockIdx.x; item < NH * mail.key_parts; item += gridDim.x) {
                    const KeyRange part(parts, mail.key_parts, length, item);
#pragma unroll 1
                    for (int first = part.first; part.wanted && first < part.end; first += KEY_GROUP) {
                        const size_t begin = cached(layer, 0, part.head, first);
                        copier.copy_keys(m.k_cache + begin, m.v_cache + begin, min(KEY_GROUP, part.end - first));
                    }
                }
            }
        }
        copier.copy(block_rows.weights(m, HEAD, L));
        copier.ring.watch.stop(spent, COPIES, COPIES);
    }
#endif
};

__device__ __forceinline__ void whole_step(const Model& m, Parcel* parcels, int* clock, int* spent)
{
    extern __shared__ uint4 shared[];
    __shared__ uint64_t barriers[2 * UNITS];
    __shared__ uint4 mailboxes_storage[(sizeof(Mailboxes) + 15) / 16], block_rows_storage[(sizeof(BlockRows) + 15) / 16];
    Mailboxes& mail = *reinterpret_cast<Mailboxes*>(mailboxes_storage);
    BlockRows& block_rows = *reinterpret_cast<BlockRows*>(block_rows_storage);
    const SharedLayout layout(shared);
    pdl_launch_dependents();
    const bool copying = warp_id() == STEP_WARPS;
    const int first = copying ? int(COPIES) : int(QKV), last = copying ? int(COPIES) : int(ATTENTION);  // rows of the thread
    const Watch watch(copying || threadIdx.x == 0, first, last, SENDING);
    const Ring ring = {layout.ring, barriers, barriers + UNITS, smem_address(layout.ring), smem_address(barriers), 0, 0, watch};
    Step step = {m, mail, block_rows, layout, ring};
    if (threadIdx.x == 0) mail = Mailboxes(parcels);
    if (threadIdx.x == (STEP_WARPS - 1) * WARP_SIZE) block_rows = BlockRows();
#ifndef RUNG_EMULATOR
    if (copying) step.ring.set_up(lane_id());
#endif
    __syncthreads();
#ifndef RUNG_EMULATOR
    __shared__ int sizes[UNITS];
    if (copying) {
        if (elected()) step.copy(sizes, spent);
        return;
    }
#endif
    step.compute(clock);
    step.ring.watch.stop(spent, first, last);
    // The first block is done when it has heard from all others, and they have read the clock.
    if (blockIdx.x == 0 && threadIdx.x == 0) *clock = int(step.epoch);
}

}  // namespace decode
