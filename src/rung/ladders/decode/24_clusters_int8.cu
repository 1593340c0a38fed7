/*---
idea   = "The step by clusters with 8-bit weights: a layer needs half the shared memory, and the rest is filled with rows of the head while layers run."
expect = "Memory is idle for most of a layer already in 16 bits, so a layer gains only the time that its messages wait for weight loads in L2, some 0.6 us, and a conversion costs 0.2. The head gains most: 39 MB at 4 TB/s are 9.6 us instead of 19.3, and 17 MB of them are in shared memory before it begins: 6 us instead of 17, and 128 - 11 - 12 * 0.5 = 111 us for gpt2."
provenance = "ours"
found  = "As expected: 112.0 us per step of gpt2 on an H200 where rung 23 takes 126 in bf16 and rung 14 160 in the same run; whole texts 8,835 tokens/s, 1.42x rung 14. With 50 / 1000 tokens cached 111.5 / 117.4. Untuned 118; docs/notes/decode-trials-2026-11.md has the effect of each setting."
from   = "decode/23"
inherit = ["dims", "needs", "tune", "define", "buffers", "inside", "launch"]
dtypes = ["bf16", "f16"]
needs  = "TILES >= 1 and C <= 1024"
[tune]
HEAD_AHEAD = [32, 0, 16, 48]
HEAD_ROUNDS = [2, 3, 1]
LATE_REFILL = [1, 0, 2]
[let]
CLUSTER = "8 if C >= 512 else 2"
CLUSTERS = "MOST_CLUSTERS if C >= 512 else 2"
UNIT = "max(2 * CLUSTER, 16)"
HIDDEN = "UNIT * ceil_div(F // UNIT, CLUSTERS)"
ROW = "64 * (ceil_div(C, 64) + (1 if ceil_div(C, 64) % 2 == 0 else 0))"
HEAD_ROW = "C if C % 64 == 0 else ROW"
PROJ_ROW = "64 * (ceil_div(HS, 64) + (1 if ceil_div(HS, 64) % 2 == 0 else 0))"
FC2_ROW = "64 * (ceil_div(HIDDEN, 64) + (1 if ceil_div(HIDDEN, 64) % 2 == 0 else 0))"
LAYER_BYTES = "(3 * HS * ROW + C * PROJ_ROW + HIDDEN * ROW + C * FC2_ROW) // CLUSTER"
KEY_BYTES = "4 * ceil_div(MAXT, CLUSTER) * HS"
STATIC_BYTES = "14 * C + 4 * FC2_ROW + (8 * CLUSTER + 4 * STEP_WARPS + 32) * (HS + 4) + 4096"
TILES = "STEP_WARPS * min(min(HEAD_ROUNDS, 32 // STEP_WARPS), (227000 - KEY_BYTES - STATIC_BYTES) // (STEP_WARPS * 8 * HEAD_ROW))"
WEIGHT_BYTES = "max(LAYER_BYTES, TILES * 8 * HEAD_ROW)"
PACKETS = "C // 2 * 16 * (ceil_div(NH, 16) + ceil_div(CLUSTERS, 16)) + CLUSTERS * CLUSTER"
[define]
EIGHT_BITS = 1
SLOTS = "TILES"
---*/
#include "clusters.cuh"

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
    clusters::step_in_clusters(model, reinterpret_cast<Packet*>(mail), clock, spent);
}
