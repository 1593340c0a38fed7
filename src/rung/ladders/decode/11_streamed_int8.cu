/*---
idea   = "The streamed kernels with 8-bit weights: a row is half as long, so that twice as many are in flight."
expect = "For gpt2-xl, where a step in bf16 is still partly memory-bound, close to half its time."
found  = "On an H200, each with its own tuning, against rung 8: gpt2 224 -> 169 us per step (5,872 tokens/s), gpt2-xl 1477 -> 1193 us at the best tuning seen, 1393 us at rung 10's. Half the bytes of bf16 save 6 us per step of gpt2: what remains is five dependency chains per layer, 2.6 us each."
provenance = "ours"
from   = "decode/10"
inherit = ["dims", "tune", "define", "bind", "buffers", "launch"]
dtypes = ["f32", "f16", "bf16"]
needs  = [
  "sm >= 80",
  "C % 16 == 0 and F // FC2_SPLIT % 16 == 0 and C // PROJ_SPLIT % 16 == 0 and C * sizeof_real % 16 == 0",
  "F % FC2_SPLIT == 0 and C % PROJ_SPLIT == 0 and C % 4 == 0 and F % 4 == 0",
  "HS * sizeof_real % 16 == 0 and 32 % (HS * sizeof_real // 16) == 0",
  "B <= 8",
  "PROJ_THREADS // 32 % PROJ_SPLIT == 0 and FC2_THREADS // 32 % FC2_SPLIT == 0",
  "QKV_THREADS // 32 * QKV_SLOTS * QKV_ROWS * C * 1 + B * round_up(C, 512) * 4 + ceil_div(3 * C, sms) * 8 <= 230000",
  "PROJ_THREADS // 32 * PROJ_SLOTS * PROJ_ROWS * C // PROJ_SPLIT * 1 + B * PROJ_SPLIT * (round_up(C // PROJ_SPLIT, 512) + ceil_div(C, sms)) * 4 <= 230000",
  "FC_THREADS // 32 * FC_SLOTS * FC_ROWS * C * 1 + B * round_up(C, 512) * 4 + ceil_div(F, sms) * 8 <= 230000",
  "FC2_THREADS // 32 * FC2_SLOTS * FC2_ROWS * F // FC2_SPLIT * 1 + B * FC2_SPLIT * (round_up(F // FC2_SPLIT, 512) + ceil_div(C, sms)) * 4 <= 230000",
  "HEAD_THREADS // 32 * HEAD_SLOTS * HEAD_ROWS * C * 1 + B * round_up(C, 512) * 4 + ceil_div(V, HEAD_BLOCKS * sms) * 8 <= 230000",
]
[tune]
FC_ROWS = [3, 2, 1]
QKV_SLOTS = [2, 1, 3, 4, 5]
HEAD_SLOTS = [1, 2, 3, 4]
FC2_SPLIT = [2, 4, 8]
QKV_THREADS = [416, 256, 192, 320, 384, 512, 608, 640]
FC_THREADS = [512, 256, 224, 320, 384, 416, 544, 640, 800]
PROJ_THREADS = [192, 256, 384, 416]
HEAD_THREADS = [512, 256, 384]
HEAD_BLOCKS = [1, 2]
[[launch]]
kernel = "project_qkv"
shared = "QKV_THREADS // 32 * QKV_SLOTS * QKV_ROWS * C * 1 + B * round_up(C, 512) * 4 + ceil_div(3 * C, sms) * 8"
[[launch]]
kernel = "attend"
[[launch]]
kernel = "project"
shared = "PROJ_THREADS // 32 * PROJ_SLOTS * PROJ_ROWS * C // PROJ_SPLIT * 1 + B * PROJ_SPLIT * (round_up(C // PROJ_SPLIT, 512) + ceil_div(C, sms)) * 4"
[[launch]]
kernel = "expand"
shared = "FC_THREADS // 32 * FC_SLOTS * FC_ROWS * C * 1 + B * round_up(C, 512) * 4 + ceil_div(F, sms) * 8"
[[launch]]
kernel = "contract"
shared = "FC2_THREADS // 32 * FC2_SLOTS * FC2_ROWS * F // FC2_SPLIT * 1 + B * FC2_SPLIT * (round_up(F // FC2_SPLIT, 512) + ceil_div(C, sms)) * 4"
[[launch]]
kernel = "head"
shared = "HEAD_THREADS // 32 * HEAD_SLOTS * HEAD_ROWS * C * 1 + B * round_up(C, 512) * 4 + ceil_div(V, HEAD_BLOCKS * sms) * 8"
[[launch]]
kernel = "pick"
---*/
#include "streamed.cuh"

using namespace decode;

extern "C" __global__ void __launch_bounds__(QKV_THREADS + 32 * BULK)
    project_qkv(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, const Real* ln1_w, const Real* ln1_b,
                const int8_t* qkv_q, const float* qkv_s, const Real* qkv_b, const int8_t* proj_q, const int8_t* fc_q, float* x,
                float* q, Real* k_cache, Real* v_cache, int layer, float eps)
{
    project_qkv_streamed<int8_t>({qkv_q, qkv_s}, proj_q, fc_q, tokens, lengths, wte, wpe, ln1_w, ln1_b, qkv_b, x, q, k_cache,
                                 v_cache, layer, eps);
}

extern "C" __global__ void __launch_bounds__(KEY_WARPS * 32)
    attend(const int* lengths, const int8_t* fc_q, const float* q, const Real* k_cache, const Real* v_cache, float* parts,
           int layer, float scale)
{
    attend_streamed(fc_q, lengths, q, k_cache, v_cache, parts, layer, scale);
}

extern "C" __global__ void __launch_bounds__(PROJ_THREADS + 32 * BULK)
    project(const int* lengths, const int8_t* proj_q, const float* proj_s, const Real* proj_b, const int8_t* fc2_q,
            const float* parts, float* x, int layer)
{
    project_streamed<int8_t>({proj_q, proj_s}, fc2_q, lengths, proj_b, parts, x, layer);
}

extern "C" __global__ void __launch_bounds__(FC_THREADS + 32 * BULK)
    expand(const Real* ln2_w, const Real* ln2_b, const int8_t* fc_q, const float* fc_s, const Real* fc_b, const int8_t* qkv_q,
           const int8_t* fc2_q, const float* x, float* h, int layer, float eps)
{
    expand_streamed<int8_t>({fc_q, fc_s}, qkv_q, fc2_q, ln2_w, ln2_b, fc_b, x, h, layer, eps);
}

extern "C" __global__ void __launch_bounds__(FC2_THREADS + 32 * BULK)
    contract(const int8_t* fc2_q, const float* fc2_s, const Real* fc2_b, const int8_t* head_q, const float* h, float* x,
             int layer)
{
    contract_streamed<int8_t>({fc2_q, fc2_s}, head_q, fc2_b, h, x, layer);
}

extern "C" __global__ void __launch_bounds__(HEAD_THREADS + 32 * BULK)
    head(const Real* lnf_w, const Real* lnf_b, const int8_t* head_q, const float* head_s, const float* x, float* logits,
         float* best_value, int* best_index, float eps)
{
    head_streamed<int8_t>({head_q, head_s}, lnf_w, lnf_b, x, logits, best_value, best_index, eps);
}

extern "C" __global__ void __launch_bounds__(128) pick(const float* best_value, const int* best_index, int* next, int groups)
{
    pick_streamed(best_value, best_index, next, groups);
}
