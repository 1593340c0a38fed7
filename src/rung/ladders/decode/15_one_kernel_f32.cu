/*---
idea   = "The step in one kernel in 32 bits: weights and the vector are split into two tf32 terms of eleven bits each, so that the result has float32 accuracy."
expect = "Rung 10 takes 230 us per step of gpt2, of which memory needs 116. In one kernel memory transfers continue during exchanges: with rung 13's 95 us of exchanges and norms, partly hidden, 180 us, 5,500 tokens/s."
found  = "On an H200 gpt2 takes 226 us per step, not 180, and is slower: 4,328 tokens/s where rung 10 has 4,533 in the same run, so rung 10 is used for it. gpt2-medium gains: 545 us, where rung 10 takes 634. Products take twice as long as rung 13's: each float is split when it is multiplied, and both terms are multiplied by both of the vector's."
provenance = "ours"
from   = "decode/13"
inherit = ["dims", "needs", "tune", "let", "define", "buffers", "inside", "launch"]
dtypes = ["f32"]
---*/
#include "exchange_epochs.cuh"
#include "weights_by_ring.cuh"
#include "products_tensor_cores.cuh"
#include "one_kernel.cuh"

using namespace decode;

extern "C" __global__ void __launch_bounds__(STEP_WARPS * 32 + 32, 1)
    step(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, const Real* ln1_w, const Real* ln1_b,
         const Real* qkv_w, const Real* qkv_b, const Real* proj_w, const Real* proj_b, const Real* ln2_w, const Real* ln2_b,
         const Real* fc_w, const Real* fc_b, const Real* fc2_w, const Real* fc2_b, const Real* lnf_w, const Real* lnf_b,
         const Real* head_w, Real* k_cache, Real* v_cache, float* logits, int* next, int* mail, int* clock, float eps,
         float scale, int* spent)
{
    const Model model = {tokens, lengths, wte,   wpe,   ln1_w, ln1_b,  qkv_w,   qkv_b,   proj_w, proj_b, ln2_w, ln2_b, fc_w,
                         fc_b,   fc2_w,   fc2_b, lnf_w, lnf_b, head_w, k_cache, v_cache, logits, next,   eps,   scale};
    whole_step(model, reinterpret_cast<Packet*>(mail), clock, spent);
}
