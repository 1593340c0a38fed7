/*---
idea   = "Pacing: no thread polls for a packet before it can have arrived, rows are requested at a set number of bytes per cycle, and a step's kernel starts while the previous one ends."
expect = "A phase is a chain of 0.8 us for sending and receiving, 0.3 for the norm, some 0.4 for the rows in the ring: the five phases of a layer, 9 us, hide behind the 14.3 us that memory takes. With stalls 17 us per layer, 48 layers and the head 870 us: 1,100 tokens/s for gpt2-xl in bf16 instead of rung 10's 706, and 120 us for gpt2 instead of 175."
found  = "On an H200 whole texts of gpt2 in bf16 at 6,521 tokens/s (rung 10: 5,570 in another process), gpt2-xl at 1,025, 74 % of memory bandwidth. gpt2-xl takes 105 us more than the 870 expected. Delayed polling gained most; then paced copies, keys through the ring and the early launch. Spills to the stack cost most (13.md)."
provenance = "ours; 16-byte packets with a flag are NCCL's low-latency protocol between GPUs"
from   = "decode/19"
inherit = ["dims", "needs", "tune", "let", "buffers", "launch"]
dtypes = ["bf16", "f16"]
[tune]
PACE = [40, 0, 28, 32, 36, 48, 64]
POLL_DELAY_STREAM_CYCLES = [900, 0, 600, 1200, 1500]
POLL_DELAY_HIDDEN_CYCLES = [1500, 0, 1000, 2000, 2500]
POLL_DELAY_IDLE_CYCLES = [0, 1000, 2000, 4000]
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
