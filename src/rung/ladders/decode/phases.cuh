// The step as a table: for each phase of a layer its input, its matrix, its epilogue and its destination. All steps in one kernel
// are driven by it.
#pragma once
#include "step_types.cuh"

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

// A model may have fewer heads of keys and values than of queries.
enum : int { KEY_HEADS = NH, QKV_ROWS = (NH + 2 * KEY_HEADS) * HS };

__device__ constexpr PhaseSpec TABLE[] = {
    {Input::RESIDUAL, -1, &Model::ln1_w, &Model::ln1_b, &Model::qkv_w, &Model::qkv_b, &Model::qkv_s, QKV_ROWS, C, Epilogue::CACHE,
     0},
    {Input::ATTENTION, 1, nullptr, nullptr, &Model::proj_w, &Model::proj_b, &Model::proj_s, C, NH * HS, Epilogue::ADD_RESIDUAL,
     2},
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

// A phase's operands in a layer, for code that knows the phase at compile time.
template <int PHASE>
struct Operands
{
    static constexpr PhaseSpec SPEC = TABLE[PHASE];

    // Row `row` of all layers' matrices, and the first row of a layer.
    static __device__ __forceinline__ const Weight* matrix(const Model& m, size_t row)
    {
        return m.*SPEC.matrix + row * SPEC.columns;
    }
    static __device__ __forceinline__ size_t first_row(int layer) { return size_t(layer) * SPEC.rows; }
    static __device__ __forceinline__ const Real* bias(const Model& m, int layer)
    {
        return m.*SPEC.bias + size_t(layer) * SPEC.rows;
    }
};

// GELU by tanh with an approximate division, so that a thread's two values are computed in parallel.
__device__ __forceinline__ float activated(float x)
{
    if (ACT != 0) return activate<ACT>(x);
    return __fdividef(x, 1.0f + __expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

}  // namespace decode
