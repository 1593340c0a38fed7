// The step as a table: for each phase of a layer its input, its matrix, its epilogue and its destination. Also what a step needs
// before it begins: the model, each block's rows of it, shared memory, and the mailboxes.
#pragma once
#include "mailboxes.cuh"
#include "step_vector.cuh"

namespace decode {

struct Model
{
    const int *tokens, *lengths;
    const Real *wte, *wpe, *ln1_w, *ln1_b;
    const Weight* qkv_w;
    const Real* qkv_b;
    const Weight* proj_w;
    const Real *proj_b, *ln2_w, *ln2_b;
    const Weight* fc_w;
    const Real* fc_b;
    const Weight* fc2_w;
    const Real *fc2_b, *lnf_w, *lnf_b;
    const Weight* head_w;
    Real *k_cache, *v_cache;
    float* logits;
    int* next;
    float eps, scale;
    const float *qkv_s = nullptr, *proj_s = nullptr, *fc_s = nullptr, *fc2_s = nullptr,
                *head_s = nullptr;  // of 8-bit rows
};

enum class Input { RESIDUAL, ATTENTION, HIDDEN };
enum class Epilogue { CACHE, ADD_RESIDUAL, ACTIVATE, LOGITS };

// Epochs are counted from the layer's first. A layer's second epoch belongs to the outputs of attention, which has no matrix.
struct PhaseSpec
{
    Input input;
    int awaited;                               // the epoch of the input
    const Real *Model::*gain, *Model::*shift;  // of the norm before the product, or null
    const Weight* Model::* matrix;
    const Real* Model::* bias;
    const float* Model::* scale;  // of 8-bit rows
    int rows, columns;
    Epilogue epilogue;
    int sent;  // the epoch of what goes to the phase's mailbox
};

__device__ constexpr PhaseSpec TABLE[] = {
    {Input::RESIDUAL, -1, &Model::ln1_w, &Model::ln1_b, &Model::qkv_w, &Model::qkv_b, &Model::qkv_s, 3 * C, C, Epilogue::CACHE,
     0},
    {Input::ATTENTION, 1, nullptr, nullptr, &Model::proj_w, &Model::proj_b, &Model::proj_s, C, C, Epilogue::ADD_RESIDUAL, 2},
    {Input::RESIDUAL, 2, &Model::ln2_w, &Model::ln2_b, &Model::fc_w, &Model::fc_b, &Model::fc_s, F, C, Epilogue::ACTIVATE, 3},
    {Input::HIDDEN, 3, nullptr, nullptr, &Model::fc2_w, &Model::fc2_b, &Model::fc2_s, C, F, Epilogue::ADD_RESIDUAL, 4},
    {Input::RESIDUAL, -1, &Model::lnf_w, &Model::lnf_b, &Model::head_w, nullptr, &Model::head_s, V, C, Epilogue::LOGITS, 0},
};
constexpr int EPOCHS_OF_LAYER = 5;

// A phase's entry. The phase is known at run time only, since all phases run the same code; comparisons with it select among
// constants, without a table in memory.
template <class Get>
__device__ __forceinline__ auto entry(int phase, Get get)
{
    auto value = get(TABLE[0]);
#pragma unroll
    for (int i = 1; i <= HEAD; i++)
        if (phase == i) value = get(TABLE[i]);
    return value;
}
__device__ __forceinline__ bool has(int phase, Input input)
{
    return entry(phase, [&](const PhaseSpec& spec) { return spec.input == input; });
}
__device__ __forceinline__ bool has(int phase, Epilogue epilogue)
{
    return entry(phase, [&](const PhaseSpec& spec) { return spec.epilogue == epilogue; });
}

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

// GELU by tanh with an approximate division, so that a thread's two values are computed in parallel.
__device__ __forceinline__ float activated(float x)
{
    if (ACT != 0) return activate<ACT>(x);
    return __fdividef(x, 1.0f + __expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

// Hidden units per parcel, and per word.
constexpr int HIDDEN_IN_WORD = 4 / sizeof(Factor), HIDDEN = 3 * HIDDEN_IN_WORD;
using HiddenMailbox = Mailbox<HIDDEN, HIDDEN_IN_WORD>;

constexpr int OUTPUTS = TWO_TERM_TF32 ? 2 : 4;  // elements of a head's output per parcel, as floats or halves, with their weight

// Five kinds of mail, each with its own mailbox, and one per row in a step of several rows. A layer's parcels overwrite those of
// the layer before: no block sends one before it has received data that every block sent after reading the old parcel.
struct Mailboxes
{
    Mailbox<3> qkv, after_attention, after_mlp;
    HiddenMailbox hidden;
    Parcel *attention, *best;
    int key_parts;

    __device__ __forceinline__ explicit Mailboxes(Parcel* at)
        : qkv(at, 3 * C), after_attention(at + B * qkv.parcels(), C),
          after_mlp(after_attention.mail + B * after_attention.parcels(), C), hidden(after_mlp.mail + B * after_mlp.parcels(), F),
          attention(hidden.mail + B * hidden.parcels()), key_parts(max(1, int(gridDim.x) / (B * NH)))
    {
        best = attention + B * NH * key_parts * (HS / OUTPUTS);
    }
};

}  // namespace decode
