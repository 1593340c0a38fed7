/*---
idea   = "Few rows with 8-bit weights: half the bytes for the same exchanges."
expect = "A step of few rows is limited more by exchanges than by bandwidth: for gpt2 little changes, for gpt2-xl weights take 363 us less."
found  = "As expected: 2, 4, 8 rows of gpt2 take 219, 221, 268 us on an H200, where rung 20 takes 211, 222, 266; of gpt2-xl 2 and 4 rows run at 1,609 and 2,823 tokens/s, rung 20 at 1,277 and 2,382."
provenance = "ours"
from   = "decode/20"
inherit = ["dims", "needs", "tune", "let", "define", "buffers", "inside", "launch"]
dtypes = ["bf16", "f16"]
needs  = "C % 64 == 0"
[tune]
STEP_WARPS = [8, 10, 6, 12]
[define]
EIGHT_BITS = 1
---*/
#include "exchange_epochs.cuh"
#include "weights_by_ring.cuh"
#include "products_tensor_cores.cuh"
#include "few_rows.cuh"

using namespace decode;

extern "C" __global__ void __launch_bounds__(STEP_WARPS * 32 + 32, 1)
    step(const int* tokens, const int* lengths, const int* texts, const int* caches, const Real* wte, const Real* wpe,
         const Real* ln1_w, const Real* ln1_b, const int8_t* qkv_q, const float* qkv_s, const Real* qkv_b, const int8_t* proj_q,
         const float* proj_s, const Real* proj_b, const Real* ln2_w, const Real* ln2_b, const int8_t* fc_q, const float* fc_s,
         const Real* fc_b, const int8_t* fc2_q, const float* fc2_s, const Real* fc2_b, const Real* lnf_w, const Real* lnf_b,
         const int8_t* head_q, const float* head_s, Real* k_cache, Real* v_cache, float* logits, int* next, int* mail, int* clock,
         float eps, float scale, int* spent)
{
    const Model model = {tokens,  lengths, wte,  wpe,  ln1_w, ln1_b, qkv_q,  qkv_b, proj_q, proj_b,
                         ln2_w,   ln2_b,   fc_q, fc_b, fc2_q, fc2_b, lnf_w,  lnf_b, head_q, k_cache,
                         v_cache, logits,  next, eps,  scale, qkv_s, proj_s, fc_s,  fc2_s,  head_s};
    few_rows_step(model, texts, caches, reinterpret_cast<Packet*>(mail), clock, spent);
}
