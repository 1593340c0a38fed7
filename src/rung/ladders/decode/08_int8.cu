/*---
idea   = "Weights in eight bits, one scale per row; a byte becomes a float by one byte permutation and one subtraction, and the scale is applied to the finished sum."
expect = "Half the bytes of bf16. For gpt2, whose step is latency-bound, that matters only in the vocabulary; for gpt2-xl it should be close to half the time."
found  = "Not half the time: 1863 -> 1482 us per step of gpt2-xl against bf16 on an H200 (1.26x), and a loss for gpt2, 195 -> 225 us (0.87x). The vocabulary gains as expected (24.8 -> 15.0 us); the MLP's first product loses (3.95 -> 5.20 us per layer)."
provenance = "ours"
from   = "decode/6"
inherit = ["dims", "tune", "define", "bind", "buffers", "launch"]
dtypes = ["f32", "f16", "bf16"]
needs  = [
  "C % 16 == 0 and F // FC2_SPLIT % 16 == 0 and C // PROJ_SPLIT % 16 == 0 and C * sizeof_real % 16 == 0",
  "F % FC2_SPLIT == 0 and C % PROJ_SPLIT == 0 and C % 4 == 0 and F % 4 == 0",
  "PROJ_THREADS // 32 % PROJ_SPLIT == 0 and FC2_THREADS // 32 % FC2_SPLIT == 0",
  "HS * sizeof_real % 16 == 0 and 32 % (HS * sizeof_real // 16) == 0",
  "B <= 8 and (B + 2) * round_up(C, 512) * 4 <= 200000",
  "B * FC2_SPLIT * round_up(F // FC2_SPLIT, 512) * 4 <= 200000",
]
[[launch]]
kernel = "project_qkv"
shared = "(B + 2) * round_up(C, 512) * 4"
[[launch]]
kernel = "attend"
[[launch]]
kernel = "project"
shared = "B * PROJ_SPLIT * round_up(C // PROJ_SPLIT, 512) * 4"
[[launch]]
kernel = "expand"
shared = "(B + 2) * round_up(C, 512) * 4"
[[launch]]
kernel = "contract"
shared = "B * FC2_SPLIT * round_up(F // FC2_SPLIT, 512) * 4"
[[launch]]
kernel = "head"
shared = "(B + 2) * round_up(C, 512) * 4"
[[launch]]
kernel = "pick"
---*/
#include "one_row.cuh"

using namespace decode;

extern "C" __global__ void __launch_bounds__(QKV_THREADS)
    project_qkv(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, const Real* ln1_w, const Real* ln1_b,
                const int8_t* qkv_q, const float* qkv_s, const Real* qkv_b, float* x, float* q, Real* k_cache, Real* v_cache,
                int layer, float eps)
{
    project_qkv_row<int8_t>({qkv_q, qkv_s}, tokens, lengths, wte, wpe, ln1_w, ln1_b, qkv_b, x, q, k_cache, v_cache, layer, eps);
}

extern "C" __global__ void __launch_bounds__(KEY_WARPS * 32)
    attend(const int* lengths, const float* q, const Real* k_cache, const Real* v_cache, float* parts, int layer, float scale)
{
    attend_row(lengths, q, k_cache, v_cache, parts, layer, scale);
}

extern "C" __global__ void __launch_bounds__(PROJ_THREADS) project(const int* lengths, const int8_t* proj_q, const float* proj_s,
                                                                   const Real* proj_b, const float* parts, float* x, int layer)
{
    project_row<int8_t>({proj_q, proj_s}, lengths, proj_b, parts, x, layer);
}

extern "C" __global__ void __launch_bounds__(FC_THREADS)
    expand(const Real* ln2_w, const Real* ln2_b, const int8_t* fc_q, const float* fc_s, const Real* fc_b, const float* x,
           float* h, int layer, float eps)
{
    expand_row<int8_t>({fc_q, fc_s}, ln2_w, ln2_b, fc_b, x, h, layer, eps);
}

extern "C" __global__ void __launch_bounds__(FC2_THREADS)
    contract(const int8_t* fc2_q, const float* fc2_s, const Real* fc2_b, const float* h, float* x, int layer)
{
    contract_row<int8_t>({fc2_q, fc2_s}, fc2_b, h, x, layer);
}

extern "C" __global__ void __launch_bounds__(HEAD_THREADS)
    head(const Real* lnf_w, const Real* lnf_b, const int8_t* head_q, const float* head_s, const float* x, float* logits,
         float* best_value, int* best_index, float eps)
{
    head_row<int8_t>({head_q, head_s}, lnf_w, lnf_b, x, logits, best_value, best_index, eps);
}

extern "C" __global__ void __launch_bounds__(128) pick(const float* best_value, const int* best_index, int* next, int groups)
{
    pick_row(best_value, best_index, next, groups);
}
