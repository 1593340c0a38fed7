/*---
idea   = "Weights stream through shared memory: a producer warp has the copy engine load whole rows into a ring, ahead of the arithmetic and before the kernel's input is ready, with a limit on the bytes in flight. Biases and the residual are prefetched as well."
expect = "Registers no longer limit the bytes in flight: 100 KB per multiprocessor instead of 25. A kernel's own dependency chain is some 2.3 us: 0.45 until it is released, 1.1 for its input and the norm, 0.5 for the last rows, 0.3 to end; gpt2-xl, which needs 14 us of memory time per layer, goes from 37 us to nearly 20."
found  = "On an H200, each with its own tuning, against rung 5: gpt2 187 -> 175 us per step in bf16, a tie in f32, gpt2-xl 1855 -> 1343 us: 27 us per layer, not 20. Two kernels share 227 KB, so a ring holds two thirds of a block's rows, and the next kernel's prefetches are served before the rest. Larger rings and prefetches into L2 were slower (06.md)."
provenance = "ours"
from   = "decode/5"
rewrite = "The products are new: a producer warp and a ring replace loads into registers."
inherit = ["dims", "let", "buffers", "launch", "formats"]
dtypes = ["f32", "f16", "bf16"]
needs  = [
  "sm >= 80",
  "C * WEIGHT_BYTES % 16 == 0 and F // FC2_SPLIT * WEIGHT_BYTES % 16 == 0 and C // PROJ_SPLIT * WEIGHT_BYTES % 16 == 0",
  "F % FC2_SPLIT == 0 and C % PROJ_SPLIT == 0 and C % 4 == 0 and F % 4 == 0",
  "HS * sizeof_real % 16 == 0 and 32 % (HS * sizeof_real // 16) == 0",
  "B <= 8",
  "PROJ_THREADS // 32 % PROJ_SPLIT == 0 and FC2_THREADS // 32 % FC2_SPLIT == 0",
  "QKV_THREADS // 32 * QKV_SLOTS * QKV_ROWS * C * WEIGHT_BYTES + B * round_up(C, 512 // WEIGHT_BYTES) * 4 + ceil_div(3 * C, sms) * 8 <= 230000",
  "PROJ_THREADS // 32 * PROJ_SLOTS * PROJ_ROWS * C // PROJ_SPLIT * WEIGHT_BYTES + B * PROJ_SPLIT * (round_up(C // PROJ_SPLIT, 512 // WEIGHT_BYTES) + ceil_div(C, sms)) * 4 <= 230000",
  "FC_THREADS // 32 * FC_SLOTS * FC_ROWS * C * WEIGHT_BYTES + B * round_up(C, 512 // WEIGHT_BYTES) * 4 + ceil_div(F, sms) * 8 <= 230000",
  "FC2_THREADS // 32 * FC2_SLOTS * FC2_ROWS * F // FC2_SPLIT * WEIGHT_BYTES + B * FC2_SPLIT * (round_up(F // FC2_SPLIT, 512 // WEIGHT_BYTES) + ceil_div(C, sms)) * 4 <= 230000",
  "HEAD_THREADS // 32 * HEAD_SLOTS * HEAD_ROWS * C * WEIGHT_BYTES + B * round_up(C, 512 // WEIGHT_BYTES) * 4 + ceil_div(V, HEAD_BLOCKS * sms) * 8 <= 230000",
]
[tune]
AHEAD = [0, 1, 2, 3]
BULK = [1, 0]
REST = [0, 1]
FLIGHT = [48, 24, 96, 200]
FC2_ROWS = [3, 2, 1]
FC2_SLOTS = [1, 2, 3, 4]
FC_ROWS = [2, 3, 1]
FC_SLOTS = [1, 2, 3, 4, 5, 7]
QKV_ROWS = [3, 2, 1]
QKV_SLOTS = [1, 2, 3, 4, 5]
HEAD_ROWS = [2, 3, 4]
HEAD_SLOTS = [2, 1, 3, 4]
PROJ_SPLIT = [1, 2]
PROJ_ROWS = [2, 1]
FC2_SPLIT = [4, 2, 8]
KEY_LOADS = [4, 8, 16]
KEY_WARPS = [8, 4]
QKV_THREADS = [256, 192, 320, 384, 416, 512, 608, 640]
FC_THREADS = [384, 256, 224, 320, 416, 512, 544, 640, 800]
FC2_THREADS = [256, 384, 416, 512, 640, 768]
PROJ_THREADS = [384, 256, 192, 416]
PROJ_SLOTS = [1, 2, 3]
HEAD_THREADS = [256, 384, 512]
HEAD_BLOCKS = [2, 1]
HEAD_AHEAD = [8, 16, 0]
[define]
ACT = "act"
BY_LAYER = "by_layer"
PARTS = "ceil_div(MAXT, KEY_WARPS * KEY_LOADS * (32 // (HS * sizeof_real // 16)))"
[bind]
groups = "HEAD_BLOCKS * sms"
qkv_s = "null"
proj_s = "null"
fc_s = "null"
fc2_s = "null"
head_s = "null"
[[launch]]
kernel = "project_qkv"
grid   = "sms"
block  = "QKV_THREADS + 32 * BULK"
shared = "QKV_THREADS // 32 * QKV_SLOTS * QKV_ROWS * C * WEIGHT_BYTES + B * round_up(C, 512 // WEIGHT_BYTES) * 4 + ceil_div(3 * C, sms) * 8"
[[launch]]
kernel = "attend"
[[launch]]
kernel = "project"
grid   = "sms"
block  = "PROJ_THREADS + 32 * BULK"
shared = "PROJ_THREADS // 32 * PROJ_SLOTS * PROJ_ROWS * C // PROJ_SPLIT * WEIGHT_BYTES + B * PROJ_SPLIT * (round_up(C // PROJ_SPLIT, 512 // WEIGHT_BYTES) + ceil_div(C, sms)) * 4"
[[launch]]
kernel = "expand"
grid   = "sms"
block  = "FC_THREADS + 32 * BULK"
shared = "FC_THREADS // 32 * FC_SLOTS * FC_ROWS * C * WEIGHT_BYTES + B * round_up(C, 512 // WEIGHT_BYTES) * 4 + ceil_div(F, sms) * 8"
[[launch]]
kernel = "contract"
grid   = "sms"
block  = "FC2_THREADS + 32 * BULK"
shared = "FC2_THREADS // 32 * FC2_SLOTS * FC2_ROWS * F // FC2_SPLIT * WEIGHT_BYTES + B * FC2_SPLIT * (round_up(F // FC2_SPLIT, 512 // WEIGHT_BYTES) + ceil_div(C, sms)) * 4"
[[launch]]
kernel = "head"
grid   = "HEAD_BLOCKS * sms"
block  = "HEAD_THREADS + 32 * BULK"
shared = "HEAD_THREADS // 32 * HEAD_SLOTS * HEAD_ROWS * C * WEIGHT_BYTES + B * round_up(C, 512 // WEIGHT_BYTES) * 4 + ceil_div(V, HEAD_BLOCKS * sms) * 8"
[[launch]]
kernel = "pick"
[formats.int8]
idea   = "The streamed kernels with 8-bit weights: a row is half as long, so that twice as many are in flight."
expect = "For gpt2-xl, where a step in bf16 is still partly memory-bound, close to half its time."
found  = "On an H200, each with its own tuning, against rung 5 in 8 bits: gpt2 224 -> 169 us per step (5,872 tokens/s), gpt2-xl 1477 -> 1193 us at the best tuning seen, 1393 us at rung 6's. Half the bytes of bf16 save 6 us per step of gpt2: what remains is five dependency chains per layer, 2.6 us each."
provenance = "ours"
[formats.int8.tune]
FC_ROWS = [3, 2, 1]
QKV_SLOTS = [2, 1, 3, 4, 5]
HEAD_SLOTS = [1, 2, 3, 4]
FC2_SPLIT = [2, 4, 8]
QKV_THREADS = [416, 256, 192, 320, 384, 512, 608, 640]
FC_THREADS = [512, 256, 224, 320, 384, 416, 544, 640, 800]
PROJ_THREADS = [192, 256, 384, 416]
HEAD_THREADS = [512, 256, 384]
HEAD_BLOCKS = [1, 2]
---*/
#include "streamed.cuh"

using namespace decode;

extern "C" __global__ void __launch_bounds__(QKV_THREADS + 32 * BULK)
    project_qkv(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, const Real* ln1_w, const Real* ln1_b,
                const Weight* qkv_w, const Real* qkv_b, const Weight* proj_w, const Weight* fc_w, float* x, float* q,
                Real* k_cache, Real* v_cache, int layer, float eps, const float* qkv_s)
{
    project_qkv_streamed<Weight>({qkv_w, scales(qkv_s)}, proj_w, fc_w, tokens, lengths, wte, wpe, ln1_w, ln1_b, qkv_b, x, q,
                                 k_cache, v_cache, layer, eps);
}

extern "C" __global__ void __launch_bounds__(KEY_WARPS * 32)
    attend(const int* lengths, const Weight* fc_w, const float* q, const Real* k_cache, const Real* v_cache, float* parts,
           int layer, float scale)
{
    if (AHEAD == 1 && threadIdx.x == 0) prefetch_share(fc_w + size_t(layer) * F * C, size_t(F) * C);
    attend_keys(lengths, q, k_cache, v_cache, parts, layer, scale, [] { wait_for_input(true); });
}

extern "C" __global__ void __launch_bounds__(PROJ_THREADS + 32 * BULK)
    project(const int* lengths, const Weight* proj_w, const Real* proj_b, const Weight* fc2_w, const float* parts, float* x,
            int layer, const float* proj_s)
{
    project_streamed<Weight>({proj_w, scales(proj_s)}, fc2_w, lengths, proj_b, parts, x, layer);
}

extern "C" __global__ void __launch_bounds__(FC_THREADS + 32 * BULK)
    expand(const Real* ln2_w, const Real* ln2_b, const Weight* fc_w, const Real* fc_b, const Weight* qkv_w, const Weight* fc2_w,
           const float* x, float* h, int layer, float eps, const float* fc_s)
{
    expand_streamed<Weight>({fc_w, scales(fc_s)}, qkv_w, fc2_w, ln2_w, ln2_b, fc_b, x, h, layer, eps);
}

extern "C" __global__ void __launch_bounds__(FC2_THREADS + 32 * BULK)
    contract(const Weight* fc2_w, const Real* fc2_b, const Weight* head_w, const float* h, float* x, int layer,
             const float* fc2_s)
{
    contract_streamed<Weight>({fc2_w, scales(fc2_s)}, head_w, fc2_b, h, x, layer);
}

extern "C" __global__ void __launch_bounds__(HEAD_THREADS + 32 * BULK)
    head(const Real* lnf_w, const Real* lnf_b, const Weight* head_w, const float* x, float* logits, float* best_value,
         int* best_index, float eps, const float* head_s)
{
    head_streamed<Weight>({head_w, scales(head_s)}, lnf_w, lnf_b, x, logits, best_value, best_index, eps);
}

extern "C" __global__ void __launch_bounds__(128) pick(const float* best_value, const int* best_index, int* next, int groups)
{
    pick_best(best_value, best_index, next, groups, [] { wait_for_input(false); });
}
