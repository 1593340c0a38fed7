/*---
idea   = "Rung 6 with the scores of all pairs: the causal mask is applied in the softmax, which writes zeros behind the diagonal, and the second product adds them."
expect = "At 64 tokens nearly twice the blocks with work to do in the first product, so up to twice its time; the second product's trees have the same depth."
found  = "Hardly slower: 251 -> 253 us (0.99x) at 4 x 64 tokens in f32 on an H200, 120 -> 121 us of these in the first product. The blocks of masked pairs were launched before, too."
provenance = "ECE 408 GPT-2 report, milestone 3, reduction: every output of QK^T has a block, masked or not; 87x and 89x over the baseline on an A40."
from   = "attention/6"
side_experiment = "The report's experiment, on rung 6."
inherit = ["needs", "buffers", "launch"]
dtypes = ["f32", "f16", "bf16"]
---*/
#include "rung.cuh"

struct Add
{
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct Larger
{
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Combines one value per thread, in a tree over shared memory; any block size up to 1024 will do.
template <class Combine>
__device__ float tree(float x, Combine combine)
{
    __shared__ float partial[1024];
    int tx = threadIdx.x;
    __syncthreads();  // readers of the previous tree
    partial[tx] = x;
    for (int left = blockDim.x; left > 1; left = (left + 1) / 2) {
        int stride = (left + 1) / 2;
        __syncthreads();
        if (tx + stride < left) partial[tx] = combine(partial[tx], partial[tx + stride]);
    }
    __syncthreads();
    return partial[0];
}

// qkv (B, T, 3, NH, HS) -> qh, kh, vh (B, NH, T, HS)
extern "C" __global__ void permute(const Real* qkv, Real* qh, Real* kh, Real* vh, int B, int T, int C, int NH, int HS)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= B * T * C) return;
    int hs = i % HS, t = i / HS % T, nh = i / HS / T % NH, b = i / HS / T / NH;
    const Real* token = qkv + ((int64_t)b * T + t) * 3 * C + nh * HS + hs;
    qh[i] = token[0];
    kh[i] = token[C];
    vh[i] = token[2 * C];
}

// scores (B, NH, T, T) = qh @ kh^T, all pairs
extern "C" __global__ void query_key(const Real* qh, const Real* kh, float* scores, int T, int HS)
{
    int t1 = blockIdx.x / T, t2 = blockIdx.x % T, hs = threadIdx.x;
    int64_t head = (int64_t)blockIdx.y * T;
    float product = to_float(qh[(head + t1) * HS + hs]) * to_float(kh[(head + t2) * HS + hs]);
    float sum = tree(product, Add());
    if (hs == 0) scores[(head + t1) * T + t2] = sum;
}

// In place, with zeros behind the diagonal if causal.
extern "C" __global__ void softmax(float* scores, int T, float scale, int causal)
{
    int t1 = blockIdx.x;
    float* x = scores + ((int64_t)blockIdx.y * T + t1) * T;
    int end = causal ? t1 + 1 : T;
    float largest = -INFINITY;
    // perhaps never several turns: GPT-2's texts end at 1024 tokens
    for (int t2 = threadIdx.x; t2 < end; t2 += blockDim.x) largest = fmaxf(largest, x[t2]);
    largest = tree(largest, Larger());
    float sum = 0.0f;
    // perhaps never several turns: GPT-2's texts end at 1024 tokens
    for (int t2 = threadIdx.x; t2 < end; t2 += blockDim.x) {
        x[t2] = expf(scale * (x[t2] - largest));
        sum += x[t2];
    }
    sum = tree(sum, Add());
    // perhaps never several turns: GPT-2's texts end at 1024 tokens
    for (int t2 = threadIdx.x; t2 < T; t2 += blockDim.x) x[t2] = t2 < end ? x[t2] / sum : 0.0f;
}

// oh (B, NH, T, HS) = scores @ vh
extern "C" __global__ void attend_value(const float* scores, const Real* vh, Real* oh, int T, int HS)
{
    int t1 = blockIdx.x / HS, hs = blockIdx.x % HS;
    int64_t head = (int64_t)blockIdx.y * T;
    float sum = 0.0f;
    // perhaps never several turns: GPT-2's texts end at 1024 tokens
    for (int t2 = threadIdx.x; t2 < T; t2 += blockDim.x) {
        sum += scores[(head + t1) * T + t2] * to_float(vh[(head + t2) * HS + hs]);
    }
    sum = tree(sum, Add());
    if (threadIdx.x == 0) oh[(head + t1) * HS + hs] = from_float<Real>(sum);
}

// oh (B, NH, T, HS) -> out (B, T, NH, HS)
extern "C" __global__ void unpermute(const Real* oh, Real* out, int B, int T, int C, int NH, int HS)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= B * T * C) return;
    int hs = i % HS, nh = i / HS % NH, t = i / HS / NH % T, b = i / HS / NH / T;
    out[i] = oh[(((int64_t)b * NH + nh) * T + t) * HS + hs];
}
