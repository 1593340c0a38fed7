/*---
idea   = "Programmatic dependent launch: a kernel starts while the previous one still runs, prefetches its weights, which no kernel writes, and only then waits for its input."
expect = "Memory is no longer idle between two kernels: the next kernel's weights arrive while the last sums are being added."
found  = "195 us per step of gpt2 in bf16 on an H200, 5126 tokens/s with eight steps per graph; the weights alone would take 29 % of that at 4.3 TB/s, and 39 % of gpt2-xl's 1863 us (539 tokens/s). Its kernels timed alone, 12 x 13.3 + 26.3 us at 50 tokens, add up to 186 us of a step of 186: the chain of short kernels determines the time, not bandwidth."
provenance = "ours; the trial of a persistent kernel showed that the chain of short phases costs more than the bytes"
from   = "decode/4"
inherit = ["dims", "needs", "tune", "let", "bind", "buffers", "launch"]
dtypes = ["f32", "f16", "bf16"]
[tune]
EARLY = [1, 0]
[bind]
qkv_s = "null"
proj_s = "null"
fc_s = "null"
fc2_s = "null"
head_s = "null"
[define]
ACT = "act"
BY_LAYER = "by_layer"
DEPENDENT = 1
PARTS = "ceil_div(MAXT, KEY_WARPS * KEY_LOADS * (32 // (HS * sizeof_real // 16)))"
[[launch]]
kernel = "project_qkv"
pdl    = true
[[launch]]
kernel = "attend"
pdl    = true
[[launch]]
kernel = "project"
pdl    = true
[[launch]]
kernel = "expand"
pdl    = true
[[launch]]
kernel = "contract"
pdl    = true
[[launch]]
kernel = "head"
pdl    = true
[[launch]]
kernel = "pick"
pdl    = true
[formats.int8]
idea   = "Weights in eight bits, one scale per row; a byte becomes a float by one byte permutation and one subtraction, and the scale is applied to the finished sum."
expect = "Half the bytes of bf16. For gpt2, whose step is latency-bound, that matters only in the vocabulary; for gpt2-xl it should be close to half the time."
found  = "Not half the time: 1863 -> 1482 us per step of gpt2-xl against bf16 on an H200 (1.26x), and a loss for gpt2, 195 -> 225 us (0.87x). The vocabulary gains as expected (24.8 -> 15.0 us); the MLP's first product loses (3.95 -> 5.20 us per layer)."
provenance = "ours"
dtypes = ["f32", "f16", "bf16"]
let    = { WEIGHT_BYTES = 1 }
define = { EIGHT_BITS = 1 }
bind   = { qkv_w = "qkv_q", proj_w = "proj_q", fc_w = "fc_q", fc2_w = "fc2_q", head_w = "head_q", qkv_s = "qkv_s", proj_s = "proj_s", fc_s = "fc_s", fc2_s = "fc2_s", head_s = "head_s" }
---*/
#include "one_row.cuh"

using namespace decode;

extern "C" __global__ void __launch_bounds__(QKV_THREADS)
    project_qkv(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, const Real* ln1_w, const Real* ln1_b,
                const Weight* qkv_w, const Real* qkv_b, float* x, float* q, Real* k_cache, Real* v_cache, int layer, float eps,
                const float* qkv_s)
{
    project_qkv_row<Weight>({qkv_w, scales(qkv_s)}, tokens, lengths, wte, wpe, ln1_w, ln1_b, qkv_b, x, q, k_cache, v_cache, layer,
                            eps);
}

extern "C" __global__ void __launch_bounds__(KEY_WARPS * 32)
    attend(const int* lengths, const float* q, const Real* k_cache, const Real* v_cache, float* parts, int layer, float scale)
{
    attend_keys(lengths, q, k_cache, v_cache, parts, layer, scale, [] { wait_for_input(); });
}

extern "C" __global__ void __launch_bounds__(PROJ_THREADS) project(const int* lengths, const Weight* proj_w, const Real* proj_b,
                                                                   const float* parts, float* x, int layer, const float* proj_s)
{
    project_row<Weight>({proj_w, scales(proj_s)}, lengths, proj_b, parts, x, layer);
}

extern "C" __global__ void __launch_bounds__(FC_THREADS)
    expand(const Real* ln2_w, const Real* ln2_b, const Weight* fc_w, const Real* fc_b, const float* x, float* h, int layer,
           float eps, const float* fc_s)
{
    expand_row<Weight>({fc_w, scales(fc_s)}, ln2_w, ln2_b, fc_b, x, h, layer, eps);
}

extern "C" __global__ void __launch_bounds__(FC2_THREADS)
    contract(const Weight* fc2_w, const Real* fc2_b, const float* h, float* x, int layer, const float* fc2_s)
{
    contract_row<Weight>({fc2_w, scales(fc2_s)}, fc2_b, h, x, layer);
}

extern "C" __global__ void __launch_bounds__(HEAD_THREADS)
    head(const Real* lnf_w, const Real* lnf_b, const Weight* head_w, const float* x, float* logits, float* best_value,
         int* best_index, float eps, const float* head_s)
{
    head_row<Weight>({head_w, scales(head_s)}, lnf_w, lnf_b, x, logits, best_value, best_index, eps);
}

extern "C" __global__ void __launch_bounds__(128) pick(const float* best_value, const int* best_index, int* next, int groups)
{
    pick_best(best_value, best_index, next, groups, [] { wait_for_input(false); });
}
