/*---
idea   = "A KV cache inside the QKV projection: for old positions it copies keys and values from the cache instead of computing them."
expect = "Two thirds of one of four matrices are saved, at the cost of copying from the cache: the report gained 57 %, since its attention and MLP still computed all positions."
found  = "On an H200, at the two text lengths that the bench timed, 7.34 -> 7.09 ms (1.03x) and 213 -> 180 ms (1.18x) per step of gpt2 in f32: far below the report's 57 %. The bench, whose medians mix the lengths, calls it a tie. Presumably attention and the MLP over all positions take a larger share here (02.md)."
provenance = "ECE 408 milestone 3, KV Cache (prepare_qkv): 43.9 to 69.0 tokens/s"
from   = "decode/1"
inherit = ["tune", "define", "buffers", "launch"]
dtypes = ["f32", "f16", "bf16"]
---*/
#include "plain.cuh"

using namespace plain;

// Blocks are launched for every position that a text may have; those beyond its end return at once.

extern "C" __global__ void embed(const int* tokens, const int* lengths, const int* history, const Real* wte, const Real* wpe,
                                 float* x, int C, int MAXT)
{
    const int c = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y, b = blockIdx.z;
    if (c >= C || t > lengths[b]) return;
    const int token = t < lengths[b] ? history[b * MAXT + t] : tokens[b];
    x[(size_t(b) * MAXT + t) * C + c] = to_float(wte[size_t(token) * C + c]) + to_float(wpe[size_t(t) * C + c]);
}

extern "C" __global__ void layer_norm(const float* x, const Real* gain, const Real* shift, const int* lengths, float* n,
                                      int layer, int C, int MAXT, float eps)
{
    const int t = blockIdx.x, b = blockIdx.y;
    if (t > lengths[b]) return;
    const size_t row = (size_t(b) * MAXT + t) * C;
    normalise(x + row, gain + layer * C, shift + layer * C, n + row, C, eps);
}

// Queries are computed for every position; keys and values of all but the last come from the cache.
extern "C" __global__ void project_qkv(const float* n, const Real* qkv_w, const Real* qkv_b, const int* lengths, float* qkv,
                                       Real* k_cache, Real* v_cache, int layer, int B, int NH, int MAXT, int HS, int C)
{
    const int o = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y, b = blockIdx.z;
    if (o >= 3 * C || t > lengths[b]) return;
    const size_t row = size_t(b) * MAXT + t;
    const int c = o % C;
    Real* kept = (o < 2 * C ? k_cache : v_cache) + cached(layer, b, c / HS, t, B, NH, MAXT, HS) + c % HS;
    if (o >= C && t < lengths[b]) {
        qkv[row * 3 * C + o] = to_float(*kept);
        return;
    }
    const float sum = linear(n + row * C, qkv_w, qkv_b, layer, 3 * C, o, C);
    qkv[row * 3 * C + o] = sum;
    if (o >= C) *kept = from_float<Real>(sum);
}

// One block per query: one thread per key for the scores, then one thread per channel for the output.
extern "C" __global__ void attend(const float* qkv, const int* lengths, float* p, float* y, int layer, int NH, int MAXT, int HS,
                                  int C, float scale, int by_layer)
{
    const int head = blockIdx.x, t = blockIdx.y, b = blockIdx.z;
    if (t > lengths[b]) return;
    const float unit = by_layer ? scale / (layer + 1) : scale;
    const float* q = qkv + (size_t(b) * MAXT + t) * 3 * C + head * HS;
    const float* k = qkv + size_t(b) * MAXT * 3 * C + C + head * HS;
    const float* v = k + C;
    float* row = p + ((size_t(b) * NH + head) * MAXT + t) * MAXT;
    float largest = -INFINITY, sum = 0.0f;
    for (int s = threadIdx.x; s <= t; s += blockDim.x) {
        float dot = 0.0f;
        for (int d = 0; d < HS; d++) dot += q[d] * k[size_t(s) * 3 * C + d];
        row[s] = dot * unit;
        largest = fmaxf(largest, dot * unit);
    }
    largest = block_max(largest);
    for (int s = threadIdx.x; s <= t; s += blockDim.x) {
        row[s] = expf(row[s] - largest);
        sum += row[s];
    }
    sum = block_sum(sum);  // its barriers also make every thread's scores visible to the others
    for (int d = threadIdx.x; d < HS; d += blockDim.x) {
        float o = 0.0f;
        for (int s = 0; s <= t; s++) o += row[s] * v[size_t(s) * 3 * C + d];
        y[(size_t(b) * MAXT + t) * C + head * HS + d] = o / sum;
    }
}

extern "C" __global__ void add_linear(const float* inp, const Real* weight, const Real* bias, const int* lengths, float* x,
                                      int layer, int MAXT, int OC, int K)
{
    const int o = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y, b = blockIdx.z;
    if (o >= OC || t > lengths[b]) return;
    const size_t row = size_t(b) * MAXT + t;
    x[row * OC + o] += linear(inp + row * K, weight, bias, layer, OC, o, K);
}

extern "C" __global__ void expand(const float* n, const Real* fc_w, const Real* fc_b, const int* lengths, float* h, int layer,
                                  int MAXT, int F, int C)
{
    const int o = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y, b = blockIdx.z;
    if (o >= F || t > lengths[b]) return;
    const size_t row = size_t(b) * MAXT + t;
    h[row * F + o] = activate(linear(n + row * C, fc_w, fc_b, layer, F, o, C));
}

extern "C" __global__ void head(const float* n, const Real* head_w, const int* lengths, float* logits, int MAXT, int V, int C)
{
    const int o = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
    if (o >= V) return;
    logits[size_t(b) * V + o] = linear(n + (size_t(b) * MAXT + lengths[b]) * C, head_w, nullptr, 0, V, o, C);
}

extern "C" __global__ void pick(const float* logits, int* next, int V)
{
    const int best = likeliest(logits + size_t(blockIdx.x) * V, V);
    if (threadIdx.x == 0) next[blockIdx.x] = best;
}
