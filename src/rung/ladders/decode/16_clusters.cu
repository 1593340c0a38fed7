/*---
idea   = "Clusters of eight blocks: a head belongs to a cluster, and so does a part of the MLP. Within a cluster data goes through distributed shared memory; only the partial sums of the projection and of the MLP's second product are exchanged through L2."
expect = "An exchange through L2 takes 1.5 to 2 us while weights are streaming, since its messages queue behind weight loads; one within a cluster 0.6 in any case. Two of the first kind and five of the second are some 5.6 us of communication per layer where rung 14 has five of the first; 12 layers of 7 us, a head of 17 and a start of 6 are 107 us for gpt2 in bf16 instead of 148."
found  = "On an H200 in graphs of eight steps, gpt2 in bf16 with 50 / 260 / 500 tokens cached: 133.1 / 133.1 / 133.3 us, where rung 14 takes 146.9 / 148.9 / 157.3 in the same run; in caches for 1,024 with 50 / 1000 cached 131.7 / 136.5 and 146.9 / 161.8. That is 26 us more than expected: exchanges within the cluster and the norms take longer than estimated (16.md)."
provenance = "ours"
from   = "decode/14"
inherit = ["bind"]
rewrite = "Work is divided by heads and hidden units instead of by rows, and a layer has two exchanges instead of five, so that only the products' idea, the packets and the loop over keys remain."
dims   = ["B", "L", "C", "NH", "F", "V", "MAXT"]
dtypes = ["bf16", "f16"]
needs  = [
  "sm >= 90 and (emulated or sms >= CLUSTERS * CLUSTER)",
  "B == 1 and NH <= 2 * CLUSTERS",
  "C % 32 == 0 and C % (8 * CLUSTER) == 0 and HS % 32 == 0",
  "32 % (HS // 8) == 0 and 3 * HS <= STEP_WARPS * 32 and CLUSTER * (HS // 4 + 1) <= STEP_WARPS * 32",
  "F % C == 0 and F % UNIT == 0 and F // UNIT >= CLUSTERS",
  "WEIGHT_BYTES + KEY_BYTES + STATIC_BYTES <= 227000",
]
[tune]
STEP_WARPS = [12, 8]
KEY_LOADS = [1, 2, 3]
POLL_DELAY_CYCLES = [600, 300, 150, 900]
POLL_DELAY_IDLE_CYCLES = [5000, 0, 3000]
HEAD_AHEAD = [8, 0, 16]
MOST_CLUSTERS = [13, 12, 14, 15]
LATE_REFILL = [0, 1, 2]
[let]
CLUSTER = "8 if C >= 512 else 2"
CLUSTERS = "MOST_CLUSTERS if C >= 512 else 2"
SIZE = 2  # of a weight
UNIT = "max(2 * CLUSTER, 16 // SIZE)"
HIDDEN = "UNIT * ceil_div(F // UNIT, CLUSTERS)"
ROW = "64 * (ceil_div(SIZE * C, 64) + (1 if ceil_div(SIZE * C, 64) % 2 == 0 else 0))"
HEAD_ROW = "C if SIZE == 1 and C % 64 == 0 else ROW"
PROJ_ROW = "64 * (ceil_div(SIZE * HS, 64) + (1 if ceil_div(SIZE * HS, 64) % 2 == 0 else 0))"
FC2_ROW = "64 * (ceil_div(SIZE * HIDDEN, 64) + (1 if ceil_div(SIZE * HIDDEN, 64) % 2 == 0 else 0))"
LAYER_BYTES = "(3 * HS * ROW + C * PROJ_ROW + HIDDEN * ROW + C * FC2_ROW) // CLUSTER"
KEY_BYTES = "4 * ceil_div(MAXT, CLUSTER) * HS"
STATIC_BYTES = "14 * C + 4 // SIZE * FC2_ROW + (8 * CLUSTER + 4 * STEP_WARPS + 32) * (HS + 4) + 4096"
TILES = "STEP_WARPS"  # of eight rows of the head that have a place
WEIGHT_BYTES = "max(LAYER_BYTES, TILES * 8 * HEAD_ROW)"
PACKETS = "C // 2 * 16 * (ceil_div(NH, 16) + ceil_div(CLUSTERS, 16)) + CLUSTERS * CLUSTER"
[define]
ACT = "act"
BY_LAYER = "by_layer"
CLUSTER = "CLUSTER"
CLUSTERS = "CLUSTERS"
WEIGHT_BYTES = "WEIGHT_BYTES"
PACKETS = "PACKETS"
SLOTS = "TILES"
[buffers.mail]
shape = ["PACKETS", "4"]
dtype = "i32"
zero = "once"
[buffers.clock]
shape = ["CLUSTERS * CLUSTER"]
dtype = "i32"
zero = "once"
[buffers.spent]
shape = ["CLUSTERS * CLUSTER", "4", "7"]
dtype = "i32"
zero = "once"
[inside]
counter = "spent"
columns = ["parts in L2", "handed over", "norm", "weights", "products", "keys", "free place"]
rows = [["attention", "MLP", "head"], ["copies"]]
[[launch]]
kernel = "step"
grid   = "CLUSTERS * CLUSTER"
cluster = "CLUSTER"
block  = "STEP_WARPS * 32 + 32"
shared = "WEIGHT_BYTES + KEY_BYTES"
cooperative = true
pdl = true
[formats.int8]
idea   = "The step by clusters with 8-bit weights: a layer needs half the shared memory, and the rest is filled with rows of the head while layers run."
expect = "Memory is idle for most of a layer already in 16 bits, so a layer gains only the time that its messages wait for weight loads in L2, some 0.6 us, and a conversion costs 0.2. The head gains most: 39 MB at 4 TB/s are 9.6 us instead of 19.3, and 17 MB of them are in shared memory before it begins: 6 us instead of 17, and 128 - 11 - 12 * 0.5 = 111 us for gpt2."
found  = "As expected: 112.0 us per step of gpt2 on an H200 where rung 16 takes 126 in bf16 and rung 14 in 8 bits 160 in the same run; whole texts 8,835 tokens/s, 1.42x rung 14 in 8 bits. With 50 / 1000 tokens cached 111.5 / 117.4. Untuned 118; docs/notes/decode-trials-2026-11.md has the effect of each setting."
provenance = "ours"
dtypes = ["bf16", "f16"]
needs  = "TILES >= 1 and C <= 1024"
define = { EIGHT_BITS = 1 }
bind   = { qkv_w = "qkv_q", proj_w = "proj_q", fc_w = "fc_q", fc2_w = "fc2_q", head_w = "head_q", qkv_s = "qkv_s", proj_s = "proj_s", fc_s = "fc_s", fc2_s = "fc2_s", head_s = "head_s" }
[formats.int8.tune]
HEAD_AHEAD = [32, 0, 16, 48]
HEAD_ROUNDS = [2, 3, 1]
LATE_REFILL = [1, 0, 2]
[formats.int8.let]
SIZE = 1
TILES = "STEP_WARPS * min(min(HEAD_ROUNDS, 32 // STEP_WARPS), (227000 - KEY_BYTES - STATIC_BYTES) // (STEP_WARPS * 8 * HEAD_ROW))"
---*/
#include "clusters.cuh"

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
    clusters::step_in_clusters(model, reinterpret_cast<Packet*>(mail), clock, spent);
}
