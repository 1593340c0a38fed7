/*---
idea   = "The whole text goes through the model again for every token: nothing is kept between steps."
expect = "The hundredth token costs a hundred times the first; the baseline that every other rung is measured against."
found  = "On an H200 the bench timed two text lengths, four samples in all: 7.3 and 213 ms per step of gpt2 in f32, 7.2 and 213 ms in bf16, so the median, 110 ms, belongs to neither. torch with a cache takes 2.07 ms in f32 (not timed in bf16). A step grows with the text, as expected; by how much per token is unknown, since the two lengths were not recorded."
provenance = "ECE 408 milestone 3: generation before the KV cache, 43.9 tokens/s with the report's best kernels"
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [128, 64, 256]
[define]
ACT = "act"
[buffers.x]
shape = ["B", "MAXT", "C"]
dtype = "f32"
[buffers.n]
shape = ["B", "MAXT", "C"]
dtype = "f32"
[buffers.qkv]
shape = ["B", "MAXT", "3 * C"]
dtype = "f32"
[buffers.p]
shape = ["B", "NH", "MAXT", "MAXT"]
dtype = "f32"
[buffers.y]
shape = ["B", "MAXT", "C"]
dtype = "f32"
[buffers.h]
shape = ["B", "MAXT", "F"]
dtype = "f32"
[[launch]]
kernel = "embed"
grid   = ["ceil_div(C, BLOCK)", "MAXT", "B"]
block  = "BLOCK"
[[launch]]
kernel = "layer_norm"
grid   = ["MAXT", "B"]
block  = 32
bind   = { gain = "ln1_w", shift = "ln1_b" }
each   = { layer = "L" }
[[launch]]
kernel = "project_qkv"
grid   = ["ceil_div(3 * C, BLOCK)", "MAXT", "B"]
block  = "BLOCK"
each   = { layer = "L" }
[[launch]]
kernel = "attend"
grid   = ["NH", "MAXT", "B"]
block  = 64
each   = { layer = "L" }
[[launch]]
kernel = "add_linear"
grid   = ["ceil_div(C, BLOCK)", "MAXT", "B"]
block  = "BLOCK"
bind   = { inp = "y", weight = "proj_w", bias = "proj_b", K = "C", OC = "C" }
each   = { layer = "L" }
[[launch]]
kernel = "layer_norm"
grid   = ["MAXT", "B"]
block  = 32
bind   = { gain = "ln2_w", shift = "ln2_b" }
each   = { layer = "L" }
[[launch]]
kernel = "expand"
grid   = ["ceil_div(F, BLOCK)", "MAXT", "B"]
block  = "BLOCK"
each   = { layer = "L" }
[[launch]]
kernel = "add_linear"
grid   = ["ceil_div(C, BLOCK)", "MAXT", "B"]
block  = "BLOCK"
bind   = { inp = "h", weight = "fc2_w", bias = "fc2_b", K = "F", OC = "C" }
each   = { layer = "L" }
[[launch]]
kernel = "layer_norm"
grid   = ["MAXT", "B"]
block  = 32
bind   = { gain = "lnf_w", shift = "lnf_b", layer = 0 }
[[launch]]
kernel = "head"
grid   = ["ceil_div(V, BLOCK)", "B"]
block  = "BLOCK"
[[launch]]
kernel = "pick"
grid   = "B"
block  = 32
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

extern "C" __global__ void project_qkv(const float* n, const Real* qkv_w, const Real* qkv_b, const int* lengths, float* qkv,
                                       int layer, int MAXT, int C)
{
    const int o = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y, b = blockIdx.z;
    if (o >= 3 * C || t > lengths[b]) return;
    const size_t row = size_t(b) * MAXT + t;
    qkv[row * 3 * C + o] = linear(n + row * C, qkv_w, qkv_b, layer, 3 * C, o, C);
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
