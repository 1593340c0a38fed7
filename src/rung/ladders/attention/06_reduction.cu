/*---
idea   = "Every sum becomes a tree: one block per output of QK^T and of AV, one block per row of the softmax, halving the number of active threads at each barrier."
expect = "Against the baseline with its one block, one to two orders of magnitude faster. Against rung 3's launch perhaps a loss: HS threads need log2(HS) barriers to add HS numbers, and no loaded value is reused."
found  = "A loss where it matters: 11.3 -> 120 ms (0.09x) at b8t1024 in f32 on an H200, 74.9 -> 258 us (0.29x) at b4t64, the same in bf16 (121 ms). One head of few queries gains (1.98x at 256 and 1.40x at 512, 0.75x at 1024 and 0.24x at 8192), and over rung 2 it is 65.6x at b4t64, similar to the report's 87x and 89x."
provenance = "ECE 408 GPT-2 report, milestone 3, reduction: 87x (QK^T), 89x (AV) and 15x (softmax) over the baseline on an A40."
dtypes = ["f32", "f16", "bf16"]
needs  = "HS <= 1024"

buffers.qh     = { shape = ["B", "NH", "T", "HS"], dtype = "real" }
buffers.kh     = { shape = ["B", "NH", "T", "HS"], dtype = "real" }
buffers.vh     = { shape = ["B", "NH", "T", "HS"], dtype = "real" }
buffers.oh     = { shape = ["B", "NH", "T", "HS"], dtype = "real" }
buffers.scores = { shape = ["B", "NH", "T", "T"], dtype = "f32" }

[[launch]]
kernel = "permute"
grid   = "ceil_div(B * T * C, 256)"
block  = 256

[[launch]]
kernel = "query_key"
grid   = ["T * T", "B * NH"]
block  = "HS"

[[launch]]
kernel = "softmax"
grid   = ["T", "B * NH"]
block  = "min(1024, round_up(T, 32))"

[[launch]]
kernel = "attend_value"
grid   = ["T * HS", "B * NH"]
block  = "min(1024, round_up(T, 32))"

[[launch]]
kernel = "unpermute"
grid   = "ceil_div(B * T * C, 256)"
block  = 256
[model]
serves = { reduction = 1 }
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

// scores (B, NH, T, T) = qh @ kh^T, up to the diagonal if causal
extern "C" __global__ void query_key(const Real* qh, const Real* kh, float* scores, int T, int HS, int causal)
{
    int t1 = blockIdx.x / T, t2 = blockIdx.x % T, hs = threadIdx.x;
    if (causal && t2 > t1) return;
    int64_t head = (int64_t)blockIdx.y * T;
    float product = to_float(qh[(head + t1) * HS + hs]) * to_float(kh[(head + t2) * HS + hs]);
    float sum = tree(product, Add());
    if (hs == 0) scores[(head + t1) * T + t2] = sum;
}

// In place.
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
    for (int t2 = threadIdx.x; t2 < end; t2 += blockDim.x) x[t2] /= sum;
}

// oh (B, NH, T, HS) = scores @ vh
extern "C" __global__ void attend_value(const float* scores, const Real* vh, Real* oh, int T, int HS, int causal)
{
    int t1 = blockIdx.x / HS, hs = blockIdx.x % HS;
    int64_t head = (int64_t)blockIdx.y * T;
    int end = causal ? t1 + 1 : T;
    float sum = 0.0f;
    // perhaps never several turns: GPT-2's texts end at 1024 tokens
    for (int t2 = threadIdx.x; t2 < end; t2 += blockDim.x) {
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
