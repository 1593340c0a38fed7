/*---
idea   = "The same five kernels with a proper launch: one thread per output of QK^T and of AV, over T as well as over B and NH."
expect = "From one block to thousands: the largest single gain of the ladder, with the same computation. It stays bound by global loads, two for every multiplication."
found  = "16.9 ms -> 75.8 us (223x) at b4t64 on an H200, 182 ms -> 421 us (433x) for one head of 512, in bf16 17.8 ms -> 80.9 us (220x): the largest gain of the ladder, as expected. 11.1 ms at b8t1024, 0.04x the speed of torch's memory-efficient attention."
provenance = "ECE 408 GPT-2 report, milestone 2: the launch configuration on its own, profiled apart from tiling; milestone 3 names the cause."
from   = "attention/2"
inherit = ["buffers", "launch"]
dtypes = ["f32", "f16", "bf16"]

[[launch]]
kernel = "permute"

[[launch]]
kernel = "query_key"
grid   = ["ceil_div(T, 16)", "ceil_div(T, 16)", "B * NH"]
block  = [16, 16]

[[launch]]
kernel = "softmax"

[[launch]]
kernel = "attend_value"
grid   = ["ceil_div(HS, 16)", "ceil_div(T, 16)", "B * NH"]
block  = [16, 16]

[[launch]]
kernel = "unpermute"
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
