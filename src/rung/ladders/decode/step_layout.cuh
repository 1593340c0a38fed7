// What a step in one kernel needs to know before it begins: the model, each block's share of it, where things lie in shared
// memory, and which mail goes where.
#pragma once
#include "row_products.cuh"

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
    const float *qkv_s = nullptr, *proj_s = nullptr, *fc_s = nullptr, *fc2_s = nullptr, *head_s = nullptr;  // of rows of eight bits
};

// Of each phase: the first of this block's rows, and how many they are.
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
        const size_t at = size_t(layer) * C;
        const int2 own = of[phase];
        if (phase == QKV) return {m.qkv_w + at * 3 * C, own, 1, m.qkv_b + 3 * at, m.ln1_w + at, m.ln1_b + at};
        if (phase == PROJ) return {m.proj_w + at * C, own, 1, m.proj_b + at, nullptr, nullptr};
        if (phase == FC) return {m.fc_w + at * F, own, 1, m.fc_b + size_t(layer) * F, m.ln2_w + at, m.ln2_b + at};
        if (phase == FC2) return {m.fc2_w + at * F, own, PARTS, m.fc2_b + at, nullptr, nullptr};
        return {m.head_w, own, 1, nullptr, m.lnf_w, m.lnf_b};
    }

    // Of the block's rows; from memory, well before they are needed.
    __device__ __forceinline__ float scale(const Model& m, int phase, int layer, int row) const
    {
        if (!SCALED) return 1.0f;
        const float* all = phase == QKV ? m.qkv_s + size_t(layer) * 3 * C : phase == PROJ ? m.proj_s + size_t(layer) * C
                           : phase == FC ? m.fc_s + size_t(layer) * F : phase == FC2 ? m.fc2_s + size_t(layer) * C : m.head_s;
        return __ldg(all + of[phase].x + max(0, min(row, of[phase].y - 1)));
    }
};

__device__ __forceinline__ float scaled(float sum, float scale) { return SCALED ? sum * scale : sum; }

constexpr int HIDDEN_PARTS = TWO_TERM_TF32 ? 2 : 1;  // hidden numbers travel as the tensor cores take them, but for floats

// What lies in shared memory beside the ring: the vector of a phase, sums of the warps for two batches of rows, and the
// block's own rows of the residual stream.
struct SharedLayout
{
    uint4* ring;
    Factor* vector;
    float *partial, *residual;

    __device__ __forceinline__ explicit SharedLayout(uint4* shared)
    {
        ring = shared;
        vector = reinterpret_cast<Factor*>(ring + SLOTS * PIECES);  // of the stream with its rest, or of hidden numbers
        partial = reinterpret_cast<float*>(vector + (HIDDEN_PARTS * F > 2 * C ? HIDDEN_PARTS * F : 2 * C));
        residual = partial + 2 * STEP_WARPS * BATCH;
    }
};

// Numbers in a parcel of hidden ones, and those of them in a word.
constexpr int HIDDEN_IN_WORD = 4 / sizeof(Factor), HIDDEN = 3 * HIDDEN_IN_WORD;
using HiddenMailbox = Mailbox<HIDDEN, HIDDEN_IN_WORD>;

constexpr int OUTPUTS = TWO_TERM_TF32 ? 2 : 4;  // numbers of a head's output in a parcel, as floats or halves, with their weight

// Five kinds of mail, each with a mailbox of its own: a parcel of one layer is replaced by that of the next, which nobody
// writes before he has read what all others wrote after they had read the parcel.
struct Mailboxes
{
    Mailbox<3> qkv, after_attention, after_mlp;
    HiddenMailbox hidden;
    Parcel *attention, *best;
    int key_parts;

    __device__ __forceinline__ explicit Mailboxes(Parcel* at)
        : qkv(at, 3 * C), after_attention(at + qkv.parcels(), C), after_mlp(after_attention.mail + after_attention.parcels(), C),
          hidden(after_mlp.mail + after_mlp.parcels(), F), attention(hidden.mail + hidden.parcels()),
          key_parts(max(1, int(gridDim.x) / NH))
    {
        best = attention + NH * key_parts * (HS / OUTPUTS);
    }
};

}  // namespace decode
