// The hidden units of the MLP, which every block receives completely.
#pragma once
#include "one_kernel_layout.cuh"

namespace decode {

struct Hidden
{
    static constexpr int HELD = ceil_div(F / HIDDEN + MOST_BLOCKS, THREADS);
    PacketSpan spans[HELD];

    __device__ __forceinline__ void look_up(const HiddenMailbox& shared)
    {
#pragma unroll
        for (int i = 0; i < HELD; i++) spans[i] = PacketSpan::of(shared, int(threadIdx.x) + i * THREADS);
    }

    __device__ __forceinline__ void receive_from(const HiddenMailbox& shared, const Vector& to, uint32_t epoch) const
    {
        Packet got[HELD];
        const int thread = opaque(threadIdx.x);
        receive(got, epoch, [&](int i) { return shared.packets + min(thread + i * THREADS, shared.count() - 1); });
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const PacketSpan span = spans[i].renewed();
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

}  // namespace decode
