/*---
idea   = "Pacing: no thread polls for a packet before it can have arrived, rows are requested at a set number of bytes per cycle, and a step's kernel starts while the previous one ends."
expect = "A phase is a chain of 0.8 us for sending and receiving, 0.3 for the norm, some 0.4 for the rows in the ring: the five phases of a layer, 9 us, hide behind the 14.3 us that memory takes. With stalls 17 us per layer, 48 layers and the head 870 us: 1,100 tokens/s for gpt2-xl in bf16 instead of rung 6's 706, and 120 us for gpt2 instead of 175."
found  = "On an H200 whole texts of gpt2 in bf16 at 6,521 tokens/s (rung 6: 5,570 in another process), gpt2-xl at 1,025, 74 % of memory bandwidth. gpt2-xl takes 105 us more than the 870 expected. Delayed polling gained most; then paced copies, keys through the ring and the early launch. Spills to the stack cost most (14.md)."
provenance = "ours; 16-byte packets with a flag are NCCL's low-latency protocol between GPUs"
from   = "decode/13"
inherit = ["dims", "needs", "tune", "let", "buffers", "launch"]
dtypes = ["bf16", "f16", "f32"]
[tune]
PACE = [40, 0, 28, 32, 36, 48, 64]
POLL_DELAY_STREAM_CYCLES = [900, 0, 600, 1200, 1500]
POLL_DELAY_HIDDEN_CYCLES = [1500, 0, 1000, 2000, 2500]
POLL_DELAY_IDLE_CYCLES = [0, 1000, 2000, 4000]
[bind]
qkv_s = "null"
proj_s = "null"
fc_s = "null"
fc2_s = "null"
head_s = "null"
[define]
ACT = "act"
BY_LAYER = "by_layer"
MOST_BLOCKS = "MOST_BLOCKS"
SLOTS = "SLOTS"
[buffers.spent]
shape = ["sms", "7", "6"]
dtype = "i32"
zero = "once"
[inside]
counter = "spent"
columns = ["mail", "norm", "weights", "products", "sending", "free slot"]
rows = [["QKV", "projection", "FC", "FC 2", "head", "attention"], ["copies"]]
[[launch]]
kernel = "step"
pdl = true
[formats.int8]
idea   = "The step in one kernel with 8-bit weights: they are converted to halves, exactly, for the tensor cores, and two rows share a slot of the ring."
expect = "Rung 6 in 8 bits takes 1220 us per step of gpt2-xl, of which memory needs 363, and 167 us of gpt2: latency between kernels. In one kernel a layer of gpt2-xl is 12 us of exchanges and products, which hide memory's 7.2, the head 20: 600 us, 1,650 tokens/s; gpt2 goes from 161 us in bf16 by rung 14 to some 140: a product has less to read, and twice as much to compute."
found  = "On an H200 whole texts of gpt2-xl at 1,179 tokens/s, 826 us per step, where rung 6 in 8 bits took 1340 and more in other runs; gpt2 at 6,430. Far from the 600 us expected for gpt2-xl, and gpt2 in bf16 stays faster: half the bytes take as long to multiply. The vector as integers in three planes of eight bits was slower (14.md)."
provenance = "ours"
dtypes = ["bf16", "f16"]
needs  = "C % 64 == 0"
tune   = { STEP_WARPS = [10, 6, 7, 8, 9, 11] }
define = { EIGHT_BITS = 1 }
bind   = { qkv_w = "qkv_q", proj_w = "proj_q", fc_w = "fc_q", fc2_w = "fc2_q", head_w = "head_q", qkv_s = "qkv_s", proj_s = "proj_s", fc_s = "fc_s", fc2_s = "fc2_s", head_s = "head_s" }
---*/
#include "exchange_epochs.cuh"
#include "weights_by_ring.cuh"
#include "products_tensor_cores.cuh"
#include "one_kernel.cuh"

using namespace decode;

extern "C" __global__ void __launch_bounds__(STEP_WARPS * 32 + 32, 1)
    step(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, const Real* ln1_w, const Real* ln1_b,
         const Weight* qkv_w, const Real* qkv_b, const Weight* proj_w, const Real* proj_b, const Real* ln2_w, const Real* ln2_b,
         const Weight* fc_w, const Real* fc_b, const Weight* fc2_w, const Real* fc2_b, const Real* lnf_w, const Real* lnf_b,
         const Weight* head_w, Real* k_cache, Real* v_cache, float* logits, int* next, int* mail, int* clock, float eps,
         float scale, int* spent, const float* qkv_s, const float* proj_s, const float* fc_s, const float* fc2_s,
         const float* head_s)
{
    const Model model = {tokens,       lengths,       wte,           wpe,    ln1_w, ln1_b, qkv_w, qkv_b,         proj_w,
                         proj_b,       ln2_w,         ln2_b,         fc_w,   fc_b,  fc2_w, fc2_b, lnf_w,         lnf_b,
                         head_w,       k_cache,       v_cache,       logits, next,  eps,   scale, scales(qkv_s), scales(proj_s),
                         scales(fc_s), scales(fc2_s), scales(head_s)};
    whole_step(model, reinterpret_cast<Packet*>(mail), clock, spent);
}
