// What a block of a one-kernel step needs before the step begins: its rows of each matrix, its shared memory, and the mailboxes.
#pragma once
#include "mailboxes.cuh"
#include "phases.cuh"
#include "step_vector.cuh"

namespace decode {

// For each phase: the first of this block's rows, and their number.
struct BlockRows
{
    int2 of[HEAD + 1];

    __device__ __forceinline__ BlockRows()
    {
        const int block = blockIdx.x;
        const RowPartition<1> c(C), c3(3 * C), v(V);
        const RowPartition<4 / sizeof(Factor)> f(F);
        of[QKV] = make_int2(c3.begin(block), c3.count(block)), of[FC] = make_int2(f.begin(block), f.count(block));
        of[PROJ] = of[FC2] = make_int2(c.begin(block), c.count(block)), of[HEAD] = make_int2(v.begin(block), v.count(block));
    }

    __device__ __forceinline__ Weights weights(const Model& m, int phase, int layer) const
    {
        return entry(phase, [&](const PhaseSpec& spec) {
            const size_t vectors = size_t(layer) * C, biases = size_t(layer) * spec.rows;
            return Weights(m.*spec.matrix + biases * spec.columns, of[phase], spec.columns / C,
                           spec.bias ? m.*spec.bias + biases : nullptr, spec.gain ? m.*spec.gain + vectors : nullptr,
                           spec.shift ? m.*spec.shift + vectors : nullptr);
        });
    }

    // Of the block's rows; loaded well before they are needed.
    __device__ __forceinline__ float scale(const Model& m, int phase, int layer, int row) const
    {
        if (!SCALED) return 1.0f;
        const float* all = entry(phase, [&](const PhaseSpec& spec) { return m.*spec.scale + size_t(layer) * spec.rows; });
        return __ldg(all + of[phase].x + max(0, min(row, of[phase].y - 1)));
    }
};

constexpr int HIDDEN_PARTS = TWO_TERM_TF32 ? 2 : 1;  // hidden units are sent in the tensor cores' format, except floats

// Shared memory after the staged weights: the vector of a phase, the warps' sums for two batches of rows, and the block's own
// rows of the residual stream.
struct SharedLayout
{
    uint4* staged;
    Factor* vector;
    float *partial, *residual;

    __device__ __forceinline__ explicit SharedLayout(uint4* shared)
    {
        staged = shared;
        vector = reinterpret_cast<Factor*>(staged + STAGED_PIECES);  // of the stream with its rounding errors, or of hidden units
        partial = reinterpret_cast<float*>(vector + (HIDDEN_PARTS * F > 2 * C ? HIDDEN_PARTS * F : 2 * C));
        residual = partial + 2 * STEP_WARPS * BATCH;
    }
};

// Hidden units as they are sent: two halves in a word, or a float.
template <class T>
__device__ __forceinline__ uint32_t packed(float a, float b, const T*)
{
    return pack2<T>(within_range(a), within_range(b));
}
__device__ __forceinline__ uint32_t packed(float a, float, const float*) { return __float_as_uint(a); }
__device__ __forceinline__ uint32_t hidden_word(float a, float b) { return packed(a, b, (const Factor*)nullptr); }

// Hidden units per packet, and per word.
constexpr int HIDDEN_IN_WORD = 4 / sizeof(Factor), HIDDEN = 3 * HIDDEN_IN_WORD;
using HiddenMailbox = Mailbox<HIDDEN, HIDDEN_IN_WORD>;

constexpr int OUTPUTS = TWO_TERM_TF32 ? 2 : 4;  // elements of a head's output per packet, as floats or halves, with their weight

// Five kinds of packets, each with its own mailbox, and one per row in a step of several rows. A layer's packets overwrite those of
// the layer before: no block sends one before it has received data that every block sent after reading the old packet.
struct Mailboxes
{
    Mailbox<3> qkv, after_attention, after_mlp;
    HiddenMailbox hidden;
    Packet *attention, *best;
    int key_parts;

    __device__ __forceinline__ explicit Mailboxes(Packet* at)
        : qkv(at, 3 * C), after_attention(at + B * qkv.count(), C),
          after_mlp(after_attention.packets + B * after_attention.count(), C),
          hidden(after_mlp.packets + B * after_mlp.count(), F), attention(hidden.packets + B * hidden.count()),
          key_parts(max(1, int(gridDim.x) / (B * NH)))
    {
        best = attention + B * NH * key_parts * (HS / OUTPUTS);
    }
};

}  // namespace decode
