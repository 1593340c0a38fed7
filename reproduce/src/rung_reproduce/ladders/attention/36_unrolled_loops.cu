/*---
idea   = "Loop unrolling as the report did it: in the one-block products, `#pragma unroll` on the innermost loop (UNROLL) and on the two around it (OUTER). Rung 2 is the baseline, code without a pragma, as in the report."
expect = "Fewer branches and more registers, 40 to 48 as in the report, and its 1.05x and 1.43x: less than against loops that are not unrolled at all (both at 1), since the compiler unrolls rung 2 by itself."
found  = "By 8 on every loop the products take 84.0 instead of 87.3 ms (1.04x) and 91.9 instead of 117 (1.28x) for twelve layers in float32 on an H200, with 7 % fewer branches and 8 more registers: the report's finding. The default, 8 on the innermost loop alone, is slower than rung 2: 23.7 against 17.0 ms a call."
provenance = "ECE 408 GPT-2 report, milestone 3, loop unrolling: 185.9 -> 176.4 ms (QK^T, registers 40 -> 48, 7 % fewer branches) and 284.9 -> 198.7 ms (AV, 40 -> 64, 16 % fewer) on an A40, by 8 on every loop."
from   = "attention/2"
side_experiment = "The report's experiment, on rung 2."
dtypes = ["f32", "f16", "bf16"]

buffers.qh     = { shape = ["B", "NH", "T", "HS"], dtype = "real" }
buffers.kh     = { shape = ["B", "NH", "T", "HS"], dtype = "real" }
buffers.vh     = { shape = ["B", "NH", "T", "HS"], dtype = "real" }
buffers.oh     = { shape = ["B", "NH", "T", "HS"], dtype = "real" }
buffers.scores = { shape = ["B", "NH", "T", "T"], dtype = "f32" }

[tune]
UNROLL = [8, 1, 2, 4, 16, 32]
OUTER  = [1, 8]

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
---*/
#include "rung.cuh"

constexpr int INNER_STEPS = UNROLL, OUTER_STEPS = OUTER;  // a pragma takes a constant, not a macro

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
#pragma unroll OUTER_STEPS
    for (int t1 = 0; t1 < T; t1++) {
        int end = causal ? t1 + 1 : T;
#pragma unroll OUTER_STEPS
        for (int t2 = 0; t2 < end; t2++) {
            float sum = 0.0f;
#pragma unroll INNER_STEPS
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
#pragma unroll OUTER_STEPS
    for (int t1 = 0; t1 < T; t1++) {
        int end = causal ? t1 + 1 : T;
#pragma unroll OUTER_STEPS
        for (int hs = 0; hs < HS; hs++) {
            float sum = 0.0f;
#pragma unroll INNER_STEPS
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
