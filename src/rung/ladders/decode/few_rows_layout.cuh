// What a block of the step for few rows needs: the places of the rows' vectors, the rows' positions, and which elements each packet
// has.
#pragma once
#include "exchanged_attention.cuh"

namespace decode {

static_assert(B <= 8 && B <= STEP_WARPS, "one warp per row");
static_assert(BATCH <= THREADS, "one thread per row of a batch");

// APART: from one row's vector to the next; with this stride, lanes that read words of several rows at once have few bank conflicts.
// The residual stream is stored as floats after its norm.
constexpr int HIDDEN_TERMS = ROUNDED_LATE ? 1 : HIDDEN_PARTS, STREAM_TERMS = WITH_REST && !ROUNDED_LATE ? 2 : 1;
constexpr int NORM_BYTES = STREAM_TERMS * C * int(sizeof(Factor));
constexpr int VECTOR_BYTES = F * HIDDEN_TERMS * int(sizeof(Factor));
constexpr int APART = ((VECTOR_BYTES > NORM_BYTES + 4 * C ? VECTOR_BYTES : NORM_BYTES + 4 * C) + 64) / int(sizeof(Factor));

constexpr int WARPS_OF_ROW = STEP_WARPS / B, LANES_OF_ROW = WARPS_OF_ROW * WARP_SIZE;

// Loads per thread and round, if `threads` threads load `items` in as few rounds of at most `most` loads as possible.
__device__ constexpr int at_once(int items, int threads, int most)
{
    return ceil_div(ceil_div(items, threads), ceil_div(ceil_div(items, threads), most));
}

// Packets of a row's vector: upper bounds for any number of blocks, and the numbers for 132 multiprocessors, which size the loops.
constexpr int MOST_STREAM_PACKETS = C / 3 + MOST_BLOCKS, MOST_HIDDEN_PACKETS = F / HIDDEN + MOST_BLOCKS;
constexpr int USUAL_STREAM_PACKETS = 132 * ceil_div(ceil_div(C, 132), 3);
constexpr int USUAL_HIDDEN_PACKETS = 132 * ceil_div(ceil_div(F / HIDDEN_IN_WORD, 132), 3);

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
    __device__ __forceinline__ float* stream(int b) const
    {
        return reinterpret_cast<float*>(vectors + b * APART + NORM_BYTES / int(sizeof(Factor)));
    }
};

// A row's cached keys, which are its text's, and its own position, which may lie beyond the cache. The result of such a row is
// meaningless, but it must not affect others.
struct RowPosition
{
    int first, cache, cached, position;

    __device__ __forceinline__ void look_up(const Model& m, const int* texts, const int* caches, int b)
    {
        first = load_fresh(texts + b), cache = load_fresh(caches + first);
        const int length = load_fresh(m.lengths + first);
        cached = min(length, MAXT), position = length + b - first;
    }
    __device__ __forceinline__ bool in_cache() const { return position < MAXT; }
};

// Which elements each packet of a row has: computed once per step.
struct Spans
{
    PacketSpan stream[MOST_STREAM_PACKETS], hidden[MOST_HIDDEN_PACKETS];

    __device__ __forceinline__ void look_up(const Mailboxes& mailboxes)
    {
        // perhaps never several turns: a narrow model has fewer packets than a block has threads
        for (int i = threadIdx.x; i < mailboxes.after_mlp.count(); i += THREADS)
            stream[i] = PacketSpan::of(mailboxes.after_mlp, i);
        // perhaps never several turns: a narrow model has fewer packets than a block has threads
        for (int i = threadIdx.x; i < mailboxes.hidden.count(); i += THREADS) hidden[i] = PacketSpan::of(mailboxes.hidden, i);
    }
};

// Destination of a batch of rows, computed before the rows' sums are known.
struct Outgoing
{
    Packet* box;
    int packet_count;
    uint32_t sent;
    bool activates, wide;
};

// With GATE a thread polls one packet until it has arrived, and only then all: fewer unsuccessful polls.
template <int N, class From>
__device__ __forceinline__ void receive_all(Packet (&got)[N], uint32_t epoch, From from)
{
    if (GATE && N > 1) {
        Packet one[1];
        receive(one, epoch, from);
    }
    receive(got, epoch, from);
}

}  // namespace decode
