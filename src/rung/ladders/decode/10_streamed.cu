/*---
idea   = "Weights stream through shared memory: a producer warp has the copy engine load whole rows into a ring, ahead of the arithmetic and before the kernel's input is ready, with a limit on the bytes in flight. Biases and the residual are prefetched as well."
expect = "Registers no longer limit the bytes in flight: 100 KB per multiprocessor instead of 25. A kernel's own dependency chain is some 2.3 us: 0.45 until it is released, 1.1 for its input and the norm, 0.5 for the last rows, 0.3 to end; gpt2-xl, which needs 14 us of memory time per layer, goes from 37 us to nearly 20."
found  = "On an H200, each with its own tuning, against rung 6: gpt2 187 -> 175 us per step in bf16, a tie in f32, gpt2-xl 1855 -> 1343 us: 27 us per layer, not 20. Two kernels share 227 KB, so a ring holds two thirds of a block's rows, and the next kernel's prefetches are served before the rest. Larger rings and prefetches into L2 were slower (10.md)."
provenance = "ours"
from   = "decode/6"
rewrite = "The products are new: a producer warp and a ring replace loads into registers."
inherit = ["dims", "buffers", "launch"]
dtypes = ["f32", "f16", "bf16"]
needs  = [
  "sm >= 80",
  "C * sizeof_real % 16 == 0 and F // FC2_SPLIT * sizeof_real % 16 == 0 and C // PROJ_SPLIT * sizeof_real % 16 == 0",
  "F % FC2_SPLIT == 0 and C % PROJ_SPLIT == 0 and C % 4 == 0 and F % 4 == 0",
  "HS * sizeof_real % 16 == 0 and 32 % (HS * sizeof_real // 16) == 0",
  "B <= 8",
  "PROJ_THREADS // 32 % PROJ_SPLIT == 0 and FC2_THREADS // 32 % FC2_SPLIT == 0",
  "QKV_THREADS // 32 * QKV_SLOTS * QKV_ROWS * C * sizeof_real + B * round_up(C, 512 // sizeof_real) * 4 + ceil_div(3 * C, sms) * 8 <= 230000",
  "PROJ_THREADS // 32 * PROJ_SLOTS * PROJ_ROWS * C // PROJ_SPLIT * sizeof_real + B * PROJ_SPLIT * (round_up(C // PROJ_SPLIT, 512 // sizeof_real) + ceil_div(C, sms)) * 4 <= 230000",
  "FC_THREADS // 32 * FC_SLOTS * FC_ROWS * C * sizeof_real + B * round_up(C, 512 // sizeof_real) * 4 + ceil_div(F, sms) * 8 <= 230000",
  "FC2_THREADS // 32 * FC2_SLOTS * FC2_ROWS * F // FC2_SPLIT * sizeof_real + B * FC2_SPLIT * (round_up(F // FC2_SPLIT, 512 // sizeof_real) + ceil_div(C, sms)) * 4 <= 230000",
  "HEAD_THREADS // 32 * HEAD_SLOTS * HEAD_ROWS * C * sizeof_real + B * round_up(C, 512 // sizeof_real) * 4 + ceil_div(V, HEAD_BLOCKS * sms) * 8 <= 230000",
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
[[launch]]
kernel = "project_qkv"
grid   = "sms"
block  = "QKV_THREADS + 32 * BULK"
shared = "QKV_THREADS // 32 * QKV_SLOTS * QKV_ROWS * C * sizeof_real + B * round_up(C, 512 // sizeof_real) * 4 + ceil_div(3 * C, sms) * 8"
[[launch]]
kernel = "attend"
[[launch]]
kernel = "project"
grid   = "sms"
block  = "PROJ_THREADS + 32 * BULK"
shared = "PROJ_THREADS // 32 * PROJ_SLOTS * PROJ_ROWS * C // PROJ_SPLIT * sizeof_real + B * PROJ_SPLIT * (round_up(C // PROJ_SPLIT, 512 // sizeof_real) + ceil_div(C, sms)) * 4"
[[launch]]
kernel = "expand"
grid   = "sms"
block  = "FC_THREADS + 32 * BULK"
shared = "FC_THREADS // 32 * FC_SLOTS * FC_ROWS * C * sizeof_real + B * round_up(C, 512 // sizeof_real) * 4 + ceil_div(F, sms) * 8"
[[launch]]
kernel = "contract"
grid   = "sms"
block  = "FC2_THREADS + 32 * BULK"
shared = "FC2_THREADS // 32 * FC2_SLOTS * FC2_ROWS * F // FC2_SPLIT * sizeof_real + B * FC2_SPLIT * (round_up(F // FC2_SPLIT, 512 // sizeof_real) + ceil_div(C, sms)) * 4"
[[launch]]
kernel = "head"
grid   = "HEAD_BLOCKS * sms"
block  = "HEAD_THREADS + 32 * BULK"
shared = "HEAD_THREADS // 32 * HEAD_SLOTS * HEAD_ROWS * C * sizeof_real + B * round_up(C, 512 // sizeof_real) * 4 + ceil_div(V, HEAD_BLOCKS * sms) * 8"
[[launch]]
kernel = "pick"
---*/
#include "streamed.cuh"

using namespace decode;

extern "C" __global__ void __launch_bounds__(QKV_THREADS + 32 * BULK)
    project_qkv(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, const Real* ln1_w, const Real* ln1_b,
                const Real* qkv_w, const Real* qkv_b, const Real* proj_w, const Real* fc_w, float* x, float* q, Real* k_cache,
                Real* v_cache, int layer, float eps)
{
    project_qkv_streamed<Real>({qkv_w, nullptr}, proj_w, fc_w, tokens, lengths, wte, wpe, ln1_w, ln1_b, qkv_b, x, q, k_cache,
                               v_cache, layer, eps);
}

extern "C" __global__ void __launch_bounds__(KEY_WARPS * 32)
    attend(const int* lengths, const Real* fc_w, const float* q, const Real* k_cache, const Real* v_cache, float* parts,
           int layer, float scale)
{
    attend_streamed(fc_w, lengths, q, k_cache, v_cache, parts, layer, scale);
}

extern "C" __global__ void __launch_bounds__(PROJ_THREADS + 32 * BULK)
    project(const int* lengths, const Real* proj_w, const Real* proj_b, const Real* fc2_w, const float* parts, float* x,
            int layer)
{
    project_streamed<Real>({proj_w, nullptr}, fc2_w, lengths, proj_b, parts, x, layer);
}

extern "C" __global__ void __launch_bounds__(FC_THREADS + 32 * BULK)
    expand(const Real* ln2_w, const Real* ln2_b, const Real* fc_w, const Real* fc_b, const Real* qkv_w, const Real* fc2_w,
           const float* x, float* h, int layer, float eps)
{
    expand_streamed<Real>({fc_w, nullptr}, qkv_w, fc2_w, ln2_w, ln2_b, fc_b, x, h, layer, eps);
}

extern "C" __global__ void __launch_bounds__(FC2_THREADS + 32 * BULK)
    contract(const Real* fc2_w, const Real* fc2_b, const Real* head_w, const float* h, float* x, int layer)
{
    contract_streamed<Real>({fc2_w, nullptr}, head_w, fc2_b, h, x, layer);
}

extern "C" __global__ void __launch_bounds__(HEAD_THREADS + 32 * BULK)
    head(const Real* lnf_w, const Real* lnf_b, const Real* head_w, const float* x, float* logits, float* best_value,
         int* best_index, float eps)
{
    head_streamed<Real>({head_w, nullptr}, lnf_w, lnf_b, x, logits, best_value, best_index, eps);
}

extern "C" __global__ void __launch_bounds__(128) pick(const float* best_value, const int* best_index, int* next, int groups)
{
    pick_streamed(best_value, best_index, next, groups);
}
