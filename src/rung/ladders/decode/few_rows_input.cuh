// The input of a phase of the step for few rows: each row's warps receive its packets, norm the stream, and leave the vector in shared
// memory.
#pragma once
#include "few_rows_layout.cuh"

namespace decode {

struct FewRowsInput
{
    const Model& m;
    const Mailboxes& mailboxes;
    const BlockRows& block_rows;
    Spans& spans;
    RowPosition* positions;
    const RowsLayout layout;
    WeightSource source;
    uint32_t epoch = 0;         // the first of the layer
    float running_mean = 0.0f;  // of the thread's row, as in residual_vector.cuh

    __device__ __forceinline__ uint32_t epoch_of(int phase, int PhaseSpec::* which) const
    {
        return epoch + entry(phase, [&](const PhaseSpec& spec) { return spec.*which; });
    }

    __device__ __forceinline__ float4 embedded(int b, int channel) const
    {
        const float4 e = four_floats(m.wte + size_t(load_fresh(m.tokens + b)) * C + channel);
        const float4 p = four_floats(m.wpe + size_t(min(positions[b].position, MAXT - 1)) * C + channel);
        return make_float4(e.x + p.x, e.y + p.y, e.z + p.z, e.w + p.w);
    }

    // Reads the stream as floats, and returns the thread's part of its row's sums.
    __device__ __forceinline__ float2 take_stream(int phase, bool embedding)
    {
        constexpr int AT_ONCE = at_once(USUAL_STREAM_PACKETS, LANES_OF_ROW, 9);
        const int b = warp_id() / WARPS_OF_ROW, lane = warp_id() % WARPS_OF_ROW * WARP_SIZE + lane_id();
        float* stream = layout.stream(b);
        float sum = 0.0f, square = 0.0f;
        const auto take = [&](int channel, float x) {
            x -= running_mean;
            stream[channel] = x, sum += x, square += x * x;
        };
        // perhaps never true: the block's warps are mostly a multiple of the rows
        if (b >= B) return make_float2(0.0f, 0.0f);
        if (embedding) {
            for (int at = 4 * lane; at < C; at += 4 * LANES_OF_ROW) {
                const float4 x = embedded(b, at);
                take(at, x.x), take(at + 1, x.y), take(at + 2, x.z), take(at + 3, x.w);
            }
            return make_float2(sum, square);
        }
        const int packet_count = mailboxes.after_mlp.count();
        const Packet* from = (phase == FC ? mailboxes.after_attention.packets : mailboxes.after_mlp.packets) + b * packet_count;
        const uint32_t awaited = epoch_of(phase, &PhaseSpec::awaited);
#pragma unroll 1
        // perhaps never several turns: one round is made for 132 multiprocessors, and the check's grids have fewer
        for (int begin = lane; begin < packet_count; begin += LANES_OF_ROW * AT_ONCE) {
            Packet got[AT_ONCE];
            PacketSpan span[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) span[i] = spans.stream[min(begin + i * LANES_OF_ROW, packet_count - 1)];
            receive_all(got, awaited, [&](int i) { return from + min(begin + i * LANES_OF_ROW, packet_count - 1); });
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
                for (int j = 0; j < 3; j++)
                    if (begin + i * LANES_OF_ROW < packet_count && j < span[i].count())
                        take(span[i].first() + j, __uint_as_float(got[i].word[j]));
        }
        return make_float2(sum, square);
    }

    // The warps of a row compute its norm together.
    __device__ __forceinline__ void normalise(int phase, bool embedding, const Vector& x, const Weights& w)
    {
        __shared__ float2 sums[STEP_WARPS];
        float2 own = take_stream(phase, embedding);
        source.watch.start(NORM);
        own = make_float2(warp_sum(own.x), warp_sum(own.y));
        const int b = warp_id() / WARPS_OF_ROW, lane = warp_id() % WARPS_OF_ROW * WARP_SIZE + lane_id();
        if (WARPS_OF_ROW > 1) {
            if (lane_id() == 0) sums[warp_id()] = own;
            sync_computing();
            own = make_float2(0.0f, 0.0f);
#pragma unroll
            for (int i = 0; i < WARPS_OF_ROW; i++) {
                const float2 part = sums[min(b, B - 1) * WARPS_OF_ROW + i];
                own.x += part.x, own.y += part.y;
            }
        } else {
            __syncwarp();
        }
        // perhaps never true: the block's warps are mostly a multiple of the rows
        if (b >= B) return;
        const float mean = own.x / C;
        const Norm norm = {mean, rsqrtf(fmaxf(own.y / C - mean * mean, 0.0f) + m.eps)};
        const Real *gain = source.gain(w), *shift = source.shift(w);
        const float* stream = layout.stream(b);
#pragma unroll 4
        for (int at = 4 * lane; at < C; at += 4 * LANES_OF_ROW) {
            const float4 v = *reinterpret_cast<const float4*>(stream + at);
            x.set4(b, at, normalised(v, norm, four_floats(gain + at), four_floats(shift + at)));
        }
        running_mean += mean;
    }

    __device__ __forceinline__ void take_hidden(const Vector& x, uint32_t awaited)
    {
        constexpr int AT_ONCE = at_once(B * USUAL_HIDDEN_PACKETS, THREADS, 8);
        const int of_row = mailboxes.hidden.count(), packet_count = B * of_row;
        const Divisor row(of_row);
#pragma unroll 1
        // perhaps never several turns: one round is made for 132 multiprocessors, and the check's grids have fewer
        for (int begin = threadIdx.x; begin < packet_count; begin += THREADS * AT_ONCE) {
            Packet got[AT_ONCE];
            int first[AT_ONCE], count[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int at = min(begin + i * THREADS, packet_count - 1), b = row.divide(at);
                const PacketSpan span = spans.hidden[at - b * of_row];
                first[i] = b * x.apart + span.first(), count[i] = begin + i * THREADS < packet_count ? span.count() : 0;
            }
            receive_all(got, awaited,
                        [&](int i) { return mailboxes.hidden.packets + min(begin + i * THREADS, packet_count - 1); });
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
                for (int j = 0; j < 3; j++) {
                    if (j * HIDDEN_IN_WORD >= count[i]) continue;
                    if (TWO_TERM_TF32)
                        x.set(0, first[i] + j, __uint_as_float(got[i].word[j]));
                    else
                        reinterpret_cast<uint32_t*>(x.numbers)[first[i] / 2 + j] = got[i].word[j];
                }
        }
    }

    __device__ __forceinline__ void take_input(int phase, bool embedding, const Vector& x, const Weights& w)
    {
        if (has(phase, Input::ATTENTION)) {
            delay_polling(POLL_DELAY_IDLE_CYCLES);
            constexpr int AT_ONCE = at_once(OUTPUT_PACKETS, THREADS, 6);
            const auto parts_of = [&](int b) { return KeyParts(positions[b].cached, mailboxes.key_parts).count; };
#pragma unroll 1
            for (int first = 0; first < OUTPUT_PACKETS; first += AT_ONCE * THREADS)
                receive_attention<AT_ONCE>(mailboxes, parts_of, x, epoch_of(phase, &PhaseSpec::awaited), first);
        } else if (has(phase, Input::HIDDEN)) {
            delay_polling(POLL_DELAY_HIDDEN_CYCLES);
            take_hidden(x, epoch_of(phase, &PhaseSpec::awaited));
        } else {
            if (!embedding) delay_polling(POLL_DELAY_STREAM_CYCLES);
            normalise(phase, embedding, x, w);
        }
    }
};

}  // namespace decode
