/*---
idea   = "One kernel for two to eight rows, which are texts or consecutive tokens of one text: a tensor-core tile has eight columns, of which a single row uses four, and each weight is read once for all rows. Blocks exchange results through memory and a grid barrier."
expect = "A step reads the weights once for any number of rows: for gpt2 it has five barriers of 1.3 us per layer where rung 13 has parcels of some 0.7, so that 2 to 8 rows take about 200 us, where rung 6 takes 265 for two and 427 for four, and rung 9 316 for eight."
provenance = "ours"
from   = "decode/13"
inherit = ["dims", "inside"]
dtypes = ["bf16", "f16"]
needs  = [
  "sm >= 90 and sms >= 4",
  "C % (64 // sizeof_real) == 0 and F % C == 0",
  "HS * sizeof_real % 16 == 0 and 32 % (HS * sizeof_real // 16) == 0",
  "B <= 8 and B <= STEP_WARPS",
  "SLOTS >= 24",
  "4 // sizeof_real * ceil_div(F, 4 // sizeof_real * sms) + (0 if F % (16 // sizeof_real * sms) == 0 else 12 // sizeof_real) <= C",  # a block's biases have a slot
]
[tune]
STEP_WARPS = [10, 8]
RING = [200, 160]
FLIGHT = [3, 4, 8]
KEY_PART = [80, 160]
KEY_LOADS = [2, 4]
PACE = [0, 40]
[let]
SLOT_BYTES = "C * sizeof_real + (0 if C * sizeof_real % 128 == 64 else 64)"
STREAM = "C * (2 if sizeof_real == 4 or B <= 2 else 1)"
APART = "max(STREAM, F * (2 if sizeof_real == 4 else 1)) * sizeof_real + 64"
OTHER_BYTES = "B * (APART + 384 * STEP_WARPS + 4 * ceil_div(C, sms))"
SLOTS = "min(120, min(RING * 1024, 218000 - OTHER_BYTES) // SLOT_BYTES)"
[define]
ACT = "act"
BY_LAYER = "by_layer"
SLOTS = "SLOTS"
[buffers.x]
shape = ["B", "C"]
dtype = "f32"
[buffers.q]
shape = ["B", "C"]
dtype = "f32"
[buffers.parts]
shape = ["B", "NH", "4", "HS + 4"]
dtype = "f32"
[buffers.h]
shape = ["B", "F"]
[buffers.best_value]
shape = ["B", "sms"]
dtype = "f32"
[buffers.best_index]
shape = ["B", "sms"]
dtype = "i32"
[buffers.counter]
shape = ["1"]
dtype = "i32"
zero = "once"
[buffers.clock]
shape = ["1"]
dtype = "i32"
zero = "once"
[buffers.spent]
shape = ["sms", "7", "6"]
dtype = "i32"
zero = "once"
[[launch]]
kernel = "step"
grid   = "sms"
block  = "STEP_WARPS * 32 + 32"
shared = "SLOTS * SLOT_BYTES + OTHER_BYTES"
cooperative = true
pdl = true
---*/
#include "weights_by_ring.cuh"
#include "products_tensor_cores.cuh"
#include "few_rows.cuh"

using namespace decode;

extern "C" __global__ void __launch_bounds__(STEP_WARPS * 32 + 32, 1)
    step(const int* tokens, const int* lengths, const int* texts, const int* caches, const Real* wte, const Real* wpe,
         const Real* ln1_w, const Real* ln1_b, const Real* qkv_w, const Real* qkv_b, const Real* proj_w, const Real* proj_b,
         const Real* ln2_w, const Real* ln2_b, const Real* fc_w, const Real* fc_b, const Real* fc2_w, const Real* fc2_b,
         const Real* lnf_w, const Real* lnf_b, const Real* head_w, Real* k_cache, Real* v_cache, float* logits, int* next,
         float* x, float* q, float* parts, Real* h, float* best_value, int* best_index, int* counter, int* clock, float eps,
         float scale, int* spent)
{
    const Model model = {tokens, lengths, wte,   wpe,   ln1_w, ln1_b,  qkv_w,   qkv_b,   proj_w, proj_b, ln2_w, ln2_b, fc_w,
                         fc_b,   fc2_w,   fc2_b, lnf_w, lnf_b, head_w, k_cache, v_cache, logits, next,   eps,   scale};
    few_rows_step(model, texts, caches, {x, q, parts, h, best_value, best_index}, counter, clock, spent);
}
