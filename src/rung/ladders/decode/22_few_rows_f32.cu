/*---
idea   = "Few rows in 32 bits: a weight is split once, and its two terms are multiplied by both terms of every row's vector."
expect = "Rung 15 is limited by splitting weights, which all rows share: 2 to 4 rows take little longer than its one."
found  = "2, 4, 8 rows of gpt2 take 308, 357, 489 us on an H200; with grid barriers in the same run 2 and 4 took 369 and 425 us, and 8 did not fit. So rows are not free: products of two terms each grow with them."
provenance = "ours"
from   = "decode/20"
inherit = ["dims", "needs", "tune", "let", "define", "buffers", "inside", "launch"]
dtypes = ["f32"]
---*/
#include "exchange_epochs.cuh"
#include "weights_by_ring.cuh"
#include "products_tensor_cores.cuh"
#include "few_rows.cuh"

using namespace decode;

extern "C" __global__ void __launch_bounds__(STEP_WARPS * 32 + 32, 1)
    step(const int* tokens, const int* lengths, const int* texts, const int* caches, const Real* wte, const Real* wpe,
         const Real* ln1_w, const Real* ln1_b, const Real* qkv_w, const Real* qkv_b, const Real* proj_w, const Real* proj_b,
         const Real* ln2_w, const Real* ln2_b, const Real* fc_w, const Real* fc_b, const Real* fc2_w, const Real* fc2_b,
         const Real* lnf_w, const Real* lnf_b, const Real* head_w, Real* k_cache, Real* v_cache, float* logits, int* next,
         int* mail, int* clock, float eps, float scale, int* spent)
{
    const Model model = {tokens, lengths, wte,   wpe,   ln1_w, ln1_b,  qkv_w,   qkv_b,   proj_w, proj_b, ln2_w, ln2_b, fc_w,
                         fc_b,   fc2_w,   fc2_b, lnf_w, lnf_b, head_w, k_cache, v_cache, logits, next,   eps,   scale};
    few_rows_step(model, texts, caches, reinterpret_cast<Packet*>(mail), clock, spent);
}
