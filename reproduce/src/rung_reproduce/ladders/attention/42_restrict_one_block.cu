/*---
idea   = "Rung 2 with __restrict__ on every pointer of its five kernels and nothing else changed, in the report's launch of one block."
expect = "Nothing: every thread sums in a register. The report found the machine code unchanged."
provenance = "ECE 408 GPT-2 report, milestone 3, restrict: 284.894 -> 284.887 ms (AV) and 185.904 -> 185.887 ms (QK^T) on an A40."
from   = "attention/2"
side_experiment = "The report's experiment, on rung 2."
inherit = ["buffers", "launch"]
dtypes = ["f32", "f16", "bf16"]
---*/
#include "rung.cuh"

// qkv (B, T, 3, NH, HS) -> qh, kh, vh (B, NH, T, HS)
extern "C" __global__ void permute(const Real* __restrict__ qkv, Real* __restrict__ qh, Real* __restrict__ kh,
                                   Real* __restrict__ vh, int B, int T, int C, int NH, int HS)
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
extern "C" __global__ void query_key(const Real* __restrict__ qh, const Real* __restrict__ kh, float* __restrict__ scores, int B,
                                     int T, int NH, int HS, int causal)
{
    int nh = blockIdx.x * blockDim.x + threadIdx.x;
    int b = blockIdx.y * blockDim.y + threadIdx.y;
    if (nh >= NH || b >= B) return;
    int64_t head = ((int64_t)b * NH + nh) * T;
    for (int t1 = 0; t1 < T; t1++) {
        int end = causal ? t1 + 1 : T;
        for (int t2 = 0; t2 < end; t2++) {
            float sum = 0.0f;
            for (int hs = 0; hs < HS; hs++) {
                sum += to_float(qh[(head + t1) * HS + hs]) * to_float(kh[(head + t2) * HS + hs]);
            }
            scores[(head + t1) * T + t2] = sum;
        }
    }
}

// One thread per row, in place.
extern "C" __global__ void softmax(float* __restrict__ scores, int B, int T, int NH, float scale, int causal)
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
extern "C" __global__ void attend_value(const float* __restrict__ scores, const Real* __restrict__ vh, Real* __restrict__ oh,
                                        int B, int T, int NH, int HS, int causal)
{
    int nh = blockIdx.x * blockDim.x + threadIdx.x;
    int b = blockIdx.y * blockDim.y + threadIdx.y;
    if (nh >= NH || b >= B) return;
    int64_t head = ((int64_t)b * NH + nh) * T;
    for (int t1 = 0; t1 < T; t1++) {
        int end = causal ? t1 + 1 : T;
        for (int hs = 0; hs < HS; hs++) {
            float sum = 0.0f;
            for (int t2 = 0; t2 < end; t2++) {
                sum += scores[(head + t1) * T + t2] * to_float(vh[(head + t2) * HS + hs]);
            }
            oh[(head + t1) * HS + hs] = from_float<Real>(sum);
        }
    }
}

// oh (B, NH, T, HS) -> out (B, T, NH, HS)
extern "C" __global__ void unpermute(const Real* __restrict__ oh, Real* __restrict__ out, int B, int T, int C, int NH, int HS)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= B * T * C) return;
    int hs = i % HS, nh = i / HS % NH, t = i / HS / NH % T, b = i / HS / NH / T;
    out[i] = oh[(((int64_t)b * NH + nh) * T + t) * HS + hs];
}
