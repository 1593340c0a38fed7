/*---
idea   = "One kernel for two to eight rows, which are texts or consecutive tokens of one text: a tensor-core tile has eight columns, of which a single row uses four, and each weight is read once for all rows. Each row has mailboxes of its own."
expect = "A step reads the weights once for any number of rows. A row adds its packets, 0.1 us per exchange, and its keys: 2 to 8 rows of gpt2 in 165 to 230 us, where rung 5 takes 265 for two and 427 for four, and rung 7 316 for eight."
found  = "With a grid barrier after each phase and keys read from memory, a step of 2, 4, 8 rows of gpt2 took 291, 309, 376 us on an H200; in the same run 211, 222, 267 us with packets per row and keys through the ring; in a second run tuned 189, 200, 249. Waiting 600 cycles before the first poll of the stream gives 6, 13, 16 us."
provenance = "ours"
from   = "decode/14"
rewrite = "Each part of a phase has a loop over rows: mailboxes, norm, epilogue and attention are written again around the same products."
inherit = ["dims", "inside", "bind", "formats"]
dtypes = ["bf16", "f16", "f32"]
needs  = [
  "sm >= 90 and sms >= 4",
  "C % (64 // sizeof_real) == 0 and F % C == 0",
  "HS * sizeof_real % 16 == 0 and 32 % (HS * sizeof_real // 16) == 0",
  "B <= 8 and B <= STEP_WARPS",
  "sms <= MOST_BLOCKS",
  "SLOTS >= 24",
  "4 // sizeof_real * ceil_div(F, 4 // sizeof_real * sms) + (0 if F % (16 // sizeof_real * sms) == 0 else 12 // sizeof_real) <= C",  # a block's biases have a slot
]
[tune]
STEP_WARPS = [8, 10, 6, 12]
RING = [200, 160]
FLIGHT = [2, 3, 1]
KEY_PART = [80, 160]
KEY_LOADS = [4, 2]
GATE = [0, 1]
PACE = [0, 40]
POLL_DELAY_STREAM_CYCLES = [0, 600, 900]
POLL_DELAY_HIDDEN_CYCLES = [0, 1000]
POLL_DELAY_IDLE_CYCLES = [0, 1000]
[let]
MOST_BLOCKS = 152
SLOT_BYTES = "C * sizeof_real + (0 if C * sizeof_real % 128 == 64 else 64)"
NORM_BYTES = "C * sizeof_real * (2 if B <= 2 and (sizeof_real == 2 or B == 1) else 1)"
APART = "max(NORM_BYTES + 4 * C, F * sizeof_real * (2 if sizeof_real == 4 and B == 1 else 1)) + 64"
OTHER_BYTES = "B * (APART + 384 * STEP_WARPS + C)"
STATIC_BYTES = "4 * ((2 * B + 1) * C // NH + C // 3 + F * sizeof_real // 12 + 2 * MOST_BLOCKS)"
SLOTS = "min(120, min(RING * 1024, 223000 - OTHER_BYTES - STATIC_BYTES) // SLOT_BYTES)"
C_PACKETS = "sms * ceil_div(ceil_div(C, sms), 3)"
QKV_PACKETS = "sms * ceil_div(ceil_div(3 * C, sms), 3)"
HIDDEN_PACKETS = "sms * ceil_div(ceil_div(F * sizeof_real // 4, sms), 3)"
HEAD_PACKETS = "NH * max(1, sms // (B * NH)) * (C // NH) * sizeof_real // 8"
[define]
ACT = "act"
BY_LAYER = "by_layer"
MOST_BLOCKS = "MOST_BLOCKS"
SLOTS = "SLOTS"
PARTS_AT_ONCE = "min(5, max(1, 132 // (B * NH)))"
[buffers.mail]
shape = ["B * (2 * C_PACKETS + QKV_PACKETS + HIDDEN_PACKETS + HEAD_PACKETS + sms)", "4"]
dtype = "i32"
zero = "once"
[buffers.clock]
shape = ["sms"]
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
[formats.int8]
idea   = "Few rows with 8-bit weights: half the bytes for the same exchanges."
expect = "A step of few rows is limited more by exchanges than by bandwidth: for gpt2 little changes, for gpt2-xl weights take 363 us less."
found  = "As expected: 2, 4, 8 rows of gpt2 take 219, 221, 268 us on an H200, where rung 15 takes 211, 222, 266; of gpt2-xl 2 and 4 rows run at 1,609 and 2,823 tokens/s, rung 15 at 1,277 and 2,382."
provenance = "ours"
tune   = { STEP_WARPS = [8, 10, 6, 12] }
---*/
#include "exchange_epochs.cuh"
#include "weights_by_ring.cuh"
#include "products_tensor_cores.cuh"
#include "few_rows.cuh"

using namespace decode;

extern "C" __global__ void __launch_bounds__(STEP_WARPS * 32 + 32, 1)
    step(const int* tokens, const int* lengths, const int* texts, const int* caches, const Real* wte, const Real* wpe,
         const Real* ln1_w, const Real* ln1_b, const Weight* qkv_w, const Real* qkv_b, const Weight* proj_w, const Real* proj_b,
         const Real* ln2_w, const Real* ln2_b, const Weight* fc_w, const Real* fc_b, const Weight* fc2_w, const Real* fc2_b,
         const Real* lnf_w, const Real* lnf_b, const Weight* head_w, Real* k_cache, Real* v_cache, float* logits, int* next,
         int* mail, int* clock, float eps, float scale, int* spent, const float* qkv_s, const float* proj_s, const float* fc_s,
         const float* fc2_s, const float* head_s)
{
    const Model model = {tokens,       lengths,       wte,           wpe,    ln1_w, ln1_b, qkv_w, qkv_b,         proj_w,
                         proj_b,       ln2_w,         ln2_b,         fc_w,   fc_b,  fc2_w, fc2_b, lnf_w,         lnf_b,
                         head_w,       k_cache,       v_cache,       logits, next,  eps,   scale, scales(qkv_s), scales(proj_s),
                         scales(fc_s), scales(fc2_s), scales(head_s)};
    few_rows_step(model, texts, caches, reinterpret_cast<Packet*>(mail), clock, spent);
}
