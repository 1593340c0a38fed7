/*---
idea   = "A producer warp has the copy engine load all weights, and the cached keys, through one ring in shared memory in the order of their use: memory transfers continue while blocks wait for one another."
expect = "200 KB per multiprocessor are 6 us of memory time, more than an exchange takes: when a phase begins, its rows have arrived. Memory time and exchange time no longer add up."
found  = "215 to 182 us a step of gpt2 in bf16 on an H200, level with rung 6 (185): weights arrive while blocks wait for each other, and now the products on CUDA cores are the limit."
provenance = "ours"
from   = "decode/11"
rewrite = "One header is exchanged for another: weights_by_ring.cuh in place of weights_direct.cuh."
inherit = ["dims", "needs", "tune", "let", "define", "buffers", "launch"]
dtypes = ["bf16", "f16"]
needs  = [
  "sm >= 90",
  "SLOTS >= 24",
  "4 // sizeof_real * ceil_div(F, 4 // sizeof_real * sms) + (0 if F % (16 // sizeof_real * sms) == 0 else 12 // sizeof_real) <= C",  # a block's biases have a slot
]
[tune]
RING = [200, 160, 120]
FLIGHT = [3, 2, 4, 8]
[let]
SLOT_BYTES = "C * sizeof_real + (0 if C * sizeof_real % 128 == 64 else 64)"
SLOTS = "min(120, min(RING * 1024, 222000 - OTHER_BYTES) // SLOT_BYTES)"
[define]
SLOTS = "SLOTS"
PACE = 0
[[launch]]
kernel = "step"
block  = "STEP_WARPS * 32 + 32"
shared = "SLOTS * SLOT_BYTES + OTHER_BYTES"
---*/
#include "exchange_epochs.cuh"
#include "weights_by_ring.cuh"
#include "products_cuda_cores.cuh"
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
