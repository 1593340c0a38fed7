/*---
idea   = "One kernel per step: permute, QK^T, softmax, AV, unpermute. In the two matrix products one thread computes a whole head, with a grid over B and NH only."
expect = "B * NH threads, all in one block, do nearly all the work: a GPU used as a slow sequential machine. Every later rung is faster by orders of magnitude."
found  = "47.3 ms for one head of 256 queries on an H200, 47.3x the time of one CPU core, 182 ms for 512, and 16.9 ms at b4t64: one block on one multiprocessor, slower than the host's CPU. bf16 changes little (17.8 ms). The report's two products took 186 and 285 ms in this launch on an A40."
provenance = "ECE 408 GPT-2 report, milestone 3: the baseline's five kernels and their launch, grid (ceil(NH/32), ceil(B/32)) of 32x32 threads."
dtypes = ["f32", "f16", "bf16"]

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
grid   = ["ceil_div(NH, 32)", "ceil_div(B, 32)"]
block  = [32, 32]

[[launch]]
kernel = "softmax"
grid   = "ceil_div(B * NH * T, 256)"
block  = 256

[[launch]]
kernel = "attend_value"
grid   = ["ceil_div(NH, 32)", "ceil_div(B, 32)"]
block  = [32, 32]

[[launch]]
kernel = "unpermute"
grid   = "ceil_div(B * T * C, 256)"
block  = 256
[model]
serves = { naive = 1 }
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
extern "C" __global__ void query_key(const Real* qh, const Real* kh, float* scores, int B, int T, int NH, int HS, int causal)
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
extern "C" __global__ void attend_value(const float* scores, const Real* vh, Real* oh, int B, int T, int NH, int HS, int causal)
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
extern "C" __global__ void unpermute(const Real* oh, Real* out, int B, int T, int C, int NH, int HS)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= B * T * C) return;
    int hs = i % HS, nh = i / HS % NH, t = i / HS / NH % T, b = i / HS / NH / T;
    out[i] = oh[(((int64_t)b * NH + nh) * T + t) * HS + hs];
}
