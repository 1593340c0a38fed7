/*---
idea   = "The inner loops of both products unrolled eightfold: fewer branches, and eight loads in flight instead of one."
expect = "A few to a few tens of per cent, more for AV than for QK^T. Today's compilers already unroll by four, so perhaps less."
found  = "Nothing, or slower: 11.1 -> 11.3 ms (0.98x) at b8t1024 in f32 on an H200, 0.99x in bf16, ties at b4t64 and for one head up to 4096. The report had 1.05x (QK^T) and 1.43x (AV) on an A40, in the launch of rung 2."
provenance = "ECE 408 GPT-2 report, milestone 3, loop unrolling: 185.9 -> 176.4 ms (QK^T) and 284.9 -> 198.7 ms (AV) on an A40; registers 40 -> 48 and 40 -> 64."
from   = "attention/3"
inherit = ["buffers", "launch"]
dtypes = ["f32", "f16", "bf16"]
---*/
#include "rung.cuh"

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
    int t2 = blockIdx.x * blockDim.x + threadIdx.x;
    int t1 = blockIdx.y * blockDim.y + threadIdx.y;
    if (t1 >= T || t2 >= (causal ? t1 + 1 : T)) return;
    int64_t head = (int64_t)blockIdx.z * T;
    float sum = 0.0f;
#pragma unroll 8
    for (int hs = 0; hs < HS; hs++) {
        sum += to_float(qh[(head + t1) * HS + hs]) * to_float(kh[(head + t2) * HS + hs]);
    }
    scores[(head + t1) * T + t2] = sum;
}

// One thread per row, in place.
extern "C" __global__ void softmax(float* scores, int B, int T, int NH, float scale, int causal)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= (int64_t)B * NH * T) return;
    float* x = scores + row * T;
    int end = causal ? row % T + 1 : T;
    float largest = -INFINITY;
    for (int t2 = 0; t2 < end; t2++) largest = fmaxf(largest, x[t2]);
    float sum = 0.0f;
    for (int t2 = 0; t2 < end; t2++) {
        x[t2] = expf(scale * (x[t2] - largest));
        sum += x[t2];
    }
    for (int t2 = 0; t2 < end; t2++) x[t2] /= sum;
}

// oh (B, NH, T, HS) = scores @ vh
extern "C" __global__ void attend_value(const float* scores, const Real* vh, Real* oh, int T, int HS, int causal)
{
    int hs = blockIdx.x * blockDim.x + threadIdx.x;
    int t1 = blockIdx.y * blockDim.y + threadIdx.y;
    if (t1 >= T || hs >= HS) return;
    int64_t head = (int64_t)blockIdx.z * T;
    int end = causal ? t1 + 1 : T;
    float sum = 0.0f;
#pragma unroll 8
    for (int t2 = 0; t2 < end; t2++) {
        sum += scores[(head + t1) * T + t2] * to_float(vh[(head + t2) * HS + hs]);
    }
    oh[(head + t1) * HS + hs] = from_float<Real>(sum);
}

// oh (B, NH, T, HS) -> out (B, T, NH, HS)
extern "C" __global__ void unpermute(const Real* oh, Real* out, int B, int T, int C, int NH, int HS)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= B * T * C) return;
    int hs = i % HS, nh = i / HS % NH, t = i / HS / NH % T, b = i / HS / NH / T;
    out[i] = oh[(((int64_t)b * NH + nh) * T + t) * HS + hs];
}
