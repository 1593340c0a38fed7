/*---
idea   = "Only the new token goes through the model: the QKV projection's epilogue appends its key and value to the cache, and attention reads the cache in place."
expect = "A step computes one column instead of all: the arithmetic falls by the length of the text, and what remains is uncoalesced weight reads, one row per thread."
found  = "On an H200, at the two text lengths that the bench timed, 7.1 -> 6.7 ms (1.06x) and 180 -> 8.1 ms (22x) per step of gpt2 in f32: as expected, a step hardly grows with the text any more. Its median is 0.28x torch's speed in f32 and 2 % of the measured bandwidth: uncoalesced weight reads, as expected (03.md)."
provenance = "ECE 408 milestone 3, KV Cache, without its second pass over old positions"
from   = "decode/2"
inherit = ["tune", "define", "launch"]
dtypes = ["f32", "f16", "bf16"]
[buffers.x]
shape = ["B", "C"]
dtype = "f32"
[buffers.n]
shape = ["B", "C"]
dtype = "f32"
[buffers.q]
shape = ["B", "C"]
dtype = "f32"
[buffers.p]
shape = ["B", "NH", "MAXT"]
dtype = "f32"
[buffers.y]
shape = ["B", "C"]
dtype = "f32"
[buffers.h]
shape = ["B", "F"]
dtype = "f32"
[[launch]]
kernel = "embed"
grid   = ["ceil_div(C, BLOCK)", "B"]
[[launch]]
kernel = "layer_norm"
grid   = "B"
[[launch]]
kernel = "project_qkv"
grid   = ["ceil_div(3 * C, BLOCK)", "B"]
[[launch]]
kernel = "attend"
grid   = ["NH", "B"]
[[launch]]
kernel = "add_linear"
grid   = ["ceil_div(C, BLOCK)", "B"]
[[launch]]
kernel = "layer_norm"
grid   = "B"
[[launch]]
kernel = "expand"
grid   = ["ceil_div(F, BLOCK)", "B"]
[[launch]]
kernel = "add_linear"
grid   = ["ceil_div(C, BLOCK)", "B"]
[[launch]]
kernel = "layer_norm"
grid   = "B"
[[launch]]
kernel = "head"
[[launch]]
kernel = "pick"
---*/
#include "plain.cuh"

using namespace plain;

extern "C" __global__ void embed(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, float* x, int C)
{
    const int c = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
    if (c < C) x[b * C + c] = to_float(wte[size_t(tokens[b]) * C + c]) + to_float(wpe[size_t(lengths[b]) * C + c]);
}

extern "C" __global__ void layer_norm(const float* x, const Real* gain, const Real* shift, float* n, int layer, int C, float eps)
{
    normalise(x + blockIdx.x * C, gain + layer * C, shift + layer * C, n + blockIdx.x * C, C, eps);
}

extern "C" __global__ void project_qkv(const float* n, const Real* qkv_w, const Real* qkv_b, const int* lengths, float* q,
                                       Real* k_cache, Real* v_cache, int layer, int B, int NH, int MAXT, int HS, int C)
{
    const int o = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
    if (o >= 3 * C) return;
    const float sum = linear(n + b * C, qkv_w, qkv_b, layer, 3 * C, o, C);
    const int c = o % C;
    const size_t at = cached(layer, b, c / HS, lengths[b], B, NH, MAXT, HS) + c % HS;
    if (o < C)
        q[b * C + c] = sum;
    else if (o < 2 * C)
        k_cache[at] = from_float<Real>(sum);
    else
        v_cache[at] = from_float<Real>(sum);
}

// One block per head: one thread per key for the scores, then one thread per channel for the output.
extern "C" __global__ void attend(const float* q, const Real* k_cache, const Real* v_cache, const int* lengths, float* p,
                                  float* y, int layer, int B, int NH, int MAXT, int HS, int C, float scale, int by_layer)
{
    const int head = blockIdx.x, b = blockIdx.y, keys = lengths[b] + 1;
    const float unit = by_layer ? scale / (layer + 1) : scale;
    const float* query = q + b * C + head * HS;
    const Real* k = k_cache + cached(layer, b, head, 0, B, NH, MAXT, HS);
    const Real* v = v_cache + cached(layer, b, head, 0, B, NH, MAXT, HS);
    float* row = p + (size_t(b) * NH + head) * MAXT;
    float largest = -INFINITY, sum = 0.0f;
    for (int t = threadIdx.x; t < keys; t += blockDim.x) {
        float s = 0.0f;
        for (int d = 0; d < HS; d++) s += query[d] * to_float(k[size_t(t) * HS + d]);
        row[t] = s * unit;
        largest = fmaxf(largest, s * unit);
    }
    largest = block_max(largest);
    for (int t = threadIdx.x; t < keys; t += blockDim.x) {
        row[t] = expf(row[t] - largest);
        sum += row[t];
    }
    sum = block_sum(sum);  // its barriers also make every thread's scores visible to the others
    for (int d = threadIdx.x; d < HS; d += blockDim.x) {
        float o = 0.0f;
        for (int t = 0; t < keys; t++) o += row[t] * to_float(v[size_t(t) * HS + d]);
        y[b * C + head * HS + d] = o / sum;
    }
}

extern "C" __global__ void add_linear(const float* inp, const Real* weight, const Real* bias, float* x, int layer, int OC, int K)
{
    const int o = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
    if (o < OC) x[b * OC + o] += linear(inp + size_t(b) * K, weight, bias, layer, OC, o, K);
}

extern "C" __global__ void expand(const float* n, const Real* fc_w, const Real* fc_b, float* h, int layer, int F, int C)
{
    const int o = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
    if (o < F) h[size_t(b) * F + o] = activate(linear(n + b * C, fc_w, fc_b, layer, F, o, C));
}

extern "C" __global__ void head(const float* n, const Real* head_w, float* logits, int V, int C)
{
    const int o = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
    if (o < V) logits[size_t(b) * V + o] = linear(n + b * C, head_w, nullptr, 0, V, o, C);
}

extern "C" __global__ void pick(const float* logits, int* next, int V)
{
    const int best = likeliest(logits + size_t(blockIdx.x) * V, V);
    if (threadIdx.x == 0) next[blockIdx.x] = best;
}
