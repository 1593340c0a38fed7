/*---
idea   = "One kernel instead of five: a block computes one query of one head, keeps its row of scores in shared memory, and reads the packed QKV in place."
expect = "No scores and no permuted copies in global memory, one launch instead of five, and T * NH * B blocks fill any GPU. But every query reads all of its keys and values again."
found  = "13.9 ms at b8t1024 in f32 on an H200, 13.1x the time of rung 9: every query reads all of K and V again; the same in bf16 (14.3 ms). At b4t64, the report's size, 47.0 us is 360x over rung 2 (the report, with a window: 106x), but 2.59x the time of rung 9."
provenance = "ECE 408 GPT-2 report, milestone 3, local attention: 106x over the baseline, much of which its authors ascribe to the fusion and the launch; the window itself is in the ladder local_attention."
from   = "attention/6"
dtypes = ["f32", "f16", "bf16"]
needs  = ["HS <= BLOCK", "T <= 50000"]

# q, k and v are views of one qkv and share their strides
bind = { stride_B = "q_stride_B", stride_NH = "q_stride_NH", stride_T = "q_stride_T" }

[tune]
BLOCK = [128, 256, 512]

[[launch]]
kernel = "attention"
grid   = ["T", "NH", "B"]
block  = "BLOCK"
shared = "4 * (T + BLOCK)"
---*/
#include "rung.cuh"

extern "C" __global__ void attention(const Real* q, const Real* k, const Real* v, Real* out, int T, int NH, int HS, int stride_B,
                                     int stride_NH, int stride_T, float scale, int causal)
{
    extern __shared__ float weights[];  // (T)
    float* partial = weights + T;       // (BLOCK)
    int t1 = blockIdx.x, nh = blockIdx.y, b = blockIdx.z, tx = threadIdx.x;
    int end = causal ? t1 + 1 : T;
    int64_t head = (int64_t)b * stride_B + nh * stride_NH;
    const Real* query = q + head + (int64_t)t1 * stride_T;

    float largest = -INFINITY;
    for (int t2 = tx; t2 < end; t2 += BLOCK) {
        const Real* key = k + head + (int64_t)t2 * stride_T;
        float sum = 0.0f;
        for (int hs = 0; hs < HS; hs++) sum += to_float(query[hs]) * to_float(key[hs]);
        weights[t2] = scale * sum;
        largest = fmaxf(largest, weights[t2]);
    }
    largest = block_max(largest);
    float sum = 0.0f;
    for (int t2 = tx; t2 < end; t2 += BLOCK) {
        weights[t2] = expf(weights[t2] - largest);
        sum += weights[t2];
    }
    sum = block_sum(sum);

    // A thread computes one of HS outputs over every slices-th key.
    int hs = tx % HS, slices = BLOCK / HS;
    float o = 0.0f;
    if (tx < slices * HS) {
        for (int t2 = tx / HS; t2 < end; t2 += slices) {
            o += weights[t2] * to_float(v[head + (int64_t)t2 * stride_T + hs]);
        }
    }
    partial[tx] = o;
    __syncthreads();
    if (tx >= HS) return;
    for (int slice = 1; slice < slices; slice++) o += partial[slice * HS + tx];
    out[(((int64_t)b * T + t1) * NH + nh) * HS + tx] = from_float<Real>(o / sum);
}
