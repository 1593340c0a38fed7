/*---
idea   = "The step in one kernel with 8-bit weights: they are converted to halves, exactly, for the tensor cores, and two rows share a slot of the ring."
expect = "Rung 11 takes 1220 us per step of gpt2-xl, of which memory needs 363, and 167 us of gpt2: latency between kernels. In one kernel a layer of gpt2-xl is 12 us of exchanges and products, which hide memory's 7.2, the head 20: 600 us, 1,650 tokens/s; gpt2 goes from 161 us in bf16 by rung 13 to some 140: a product has less to read, and twice as much to compute."
found  = "On an H200 whole texts of gpt2-xl at 1,179 tokens/s, 826 us per step, where rung 11 took 1340 and more in other runs; gpt2 at 6,430. Far from the 600 us expected for gpt2-xl, and gpt2 in bf16 stays faster: half the bytes take as long to multiply. The vector as integers in three planes of eight bits was slower (14.md)."
provenance = "ours"
from   = "decode/13"
inherit = ["dims", "needs", "tune", "let", "define", "buffers", "inside", "launch"]
dtypes = ["bf16", "f16"]
needs  = "C % 64 == 0"
[tune]
STEP_WARPS = [10, 6, 7, 8, 9, 11]
[define]
EIGHT_BITS = 1
---*/
#include "exchange_epochs.cuh"
#include "weights_by_ring.cuh"
#include "products_tensor_cores.cuh"
#include "one_kernel.cuh"

using namespace decode;

extern "C" __global__ void __launch_bounds__(STEP_WARPS * 32 + 32, 1)
    step(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, const Real* ln1_w, const Real* ln1_b,
         const int8_t* qkv_q, const float* qkv_s, const Real* qkv_b, const int8_t* proj_q, const float* proj_s,
         const Real* proj_b, const Real* ln2_w, const Real* ln2_b, const int8_t* fc_q, const float* fc_s, const Real* fc_b,
         const int8_t* fc2_q, const float* fc2_s, const Real* fc2_b, const Real* lnf_w, const Real* lnf_b, const int8_t* head_q,
         const float* head_s, Real* k_cache, Real* v_cache, float* logits, int* next, int* mail, int* clock, float eps,
         float scale, int* spent)
{
    const Model model = {tokens,  lengths, wte,  wpe,  ln1_w, ln1_b, qkv_q,  qkv_b, proj_q, proj_b,
                         ln2_w,   ln2_b,   fc_q, fc_b, fc2_q, fc2_b, lnf_w,  lnf_b, head_q, k_cache,
                         v_cache, logits,  next, eps,  scale, qkv_s, proj_s, fc_s,  fc2_s,  head_s};
    whole_step(model, reinterpret_cast<Packet*>(mail), clock, spent);
}
