// How the blocks of one kernel divide rows, and where each block puts its results for the others: in packets of 16 bytes, three
// words and the epoch in which they were sent. exchange_*.cuh send and await packets.
#pragma once
#include "step_types.cuh"

namespace decode {

struct Packet
{
    uint32_t word[3], epoch;
};

// Integer division of small numbers by a run-time constant.
struct Divisor
{
    float inverse;

    __device__ __forceinline__ explicit Divisor(int n) : inverse(1.0f / float(n)) {}
    __device__ __forceinline__ int divide(int x) const { return int((float(x) + 0.5f) * inverse); }
};

// Rows that the blocks share, STEP at a time: the first `longer` blocks have one step more.
template <int STEP>
struct RowPartition
{
    int least, longer;

    __device__ __forceinline__ explicit RowPartition(int rows)
    {
        const int steps = rows / STEP;
        least = steps / int(gridDim.x), longer = steps - least * int(gridDim.x);
    }
    __device__ __forceinline__ int most() const { return STEP * (least + (longer > 0)); }
    __device__ __forceinline__ int begin(int block) const { return STEP * (block * least + min(block, longer)); }
    __device__ __forceinline__ int count(int block) const { return STEP * (least + (block < longer)); }
    __device__ __forceinline__ int owner(int row) const
    {
        const int step = row / STEP, split = longer * (least + 1);
        return step < split ? Divisor(least + 1).divide(step) : longer + Divisor(max(least, 1)).divide(step - split);
    }
};

// A vector whose elements the blocks compute by such rows and send, PER per packet: (block, packet).
template <int PER, int STEP = 1>
struct Mailbox
{
    Packet* packets;
    RowPartition<STEP> share;
    int each;  // packets per block

    __device__ __forceinline__ Mailbox(Packet* at, int rows) : packets(at), share(rows), each(ceil_div(share.most(), PER)) {}

    __device__ __forceinline__ int count() const { return each * int(gridDim.x); }
};

// The elements in a packet: the first one's index, and their number.
struct PacketSpan
{
    int packed;

    template <int PER, int STEP>
    static __device__ __forceinline__ PacketSpan of(const Mailbox<PER, STEP>& shared, int packet)
    {
        const int block = Divisor(shared.each).divide(packet), skipped = (packet - block * shared.each) * PER;
        const int left = packet < shared.count() ? shared.share.count(block) - skipped : 0;
        return {(shared.share.begin(block) + skipped) * 8 + max(0, min(PER, left))};
    }
    __device__ __forceinline__ int first() const { return packed >> 3; }
    __device__ __forceinline__ int count() const { return packed & 7; }

    __device__ __forceinline__ PacketSpan renewed() const { return {opaque(packed)}; }
};

}  // namespace decode
