/*---
idea   = "Tensor cores multiply the rows with the vector: one column holds the vector's rounded values, another the rounding errors, and a weight costs only one read of shared memory."
expect = "A multiplication on CUDA cores needs a conversion to float and three reads of shared memory per read of the ring. Tensor cores take the 16 bytes as they are: products are limited by the reads."
found  = "182 to 177 us a step of gpt2 in bf16 on an H200, and 184 to 172 in f16: less than expected, since exchanges and not products take most of a step by now. What paces the polls makes rung 14 of it."
provenance = "ours"
from   = "decode/12"
rewrite = "One header is exchanged for another: products_tensor_cores.cuh in place of products_cuda_cores.cuh."
inherit = ["dims", "needs", "tune", "let", "define", "buffers", "launch"]
dtypes = ["bf16", "f16"]
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
         float scale)
{
    const Model model = {tokens, lengths, wte,   wpe,   ln1_w, ln1_b,  qkv_w,   qkv_b,   proj_w, proj_b, ln2_w, ln2_b, fc_w,
                         fc_b,   fc2_w,   fc2_b, lnf_w, lnf_b, head_w, k_cache, v_cache, logits, next,   eps,   scale};
    whole_step(model, reinterpret_cast<Packet*>(mail), clock, nullptr);
}
