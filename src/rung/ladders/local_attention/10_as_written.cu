/*---
idea   = "The report's kernel as written: the scores in an array weights[], the maximum and the sum by trees over a second one, and a third for the output's trees, one for each of HS columns. A block has as many threads as the window has keys."
expect = "What rung 1 computes, with three arrays instead of one and trees whose strides are powers of two: about rung 1's time. In each tree half of the threads never work."
found  = "165 us at b4t64 in f32 on an H200, as expected the time of rung 1 (167 us in an earlier run). The emulator found a race in the report's loop; this rung has one more barrier."
provenance = "ECE 408 GPT-2 report, milestone 3, local attention: weights[WINDOW_SIZE], partial_softmax, partial_sum; 4.44 ms on an A40. Its window begins at t1 - WINDOW_SIZE and so ends before the query's own key; here it begins one later, since the operation includes that key. Between two columns' trees it has no barrier, a race that warps in lockstep hide; here it has one."
from   = "local_attention/1"
side_experiment = "The report's text, beside rung 1."
inherit = ["bind"]
dtypes = ["f32", "f16", "bf16"]
needs  = ["1 <= window <= 1024", "window & (window - 1) == 0", "globals == 0"]

[define]
WINDOW_SIZE = "window"

[[launch]]
kernel = "local_attention"
grid   = ["T", "NH", "B"]
block  = "window"
---*/
#include "rung.cuh"

extern "C" __global__ void local_attention(const Real* q, const Real* k, const Real* v, Real* out, int T, int NH, int HS,
                                           int stride_B, int stride_NH, int stride_T, float scale)
{
    __shared__ float weights[WINDOW_SIZE];
    __shared__ float partial_softmax[WINDOW_SIZE];
    __shared__ float partial_sum[WINDOW_SIZE];
    __shared__ float maxval;
    __shared__ float sumval;
    int t1 = blockIdx.x, nh = blockIdx.y, b = blockIdx.z, idx = threadIdx.x;
    int ts = max(0, t1 - WINDOW_SIZE + 1), t2 = idx + ts;
    int64_t head = (int64_t)b * stride_B + nh * stride_NH;

    if (t2 <= t1) {
        float sum = 0.0f;
        for (int hs = 0; hs < HS; hs++) {
            sum += to_float(k[head + (int64_t)t2 * stride_T + hs]) * to_float(q[head + (int64_t)t1 * stride_T + hs]);
        }
        weights[idx] = sum;
    }

    // The maximum of scale * weights, so that a negative scale is right, too.
    partial_softmax[idx] = t2 <= t1 ? scale * weights[idx] : -INFINITY;
    for (unsigned int stride = blockDim.x / 2; stride >= 1; stride >>= 1) {
        __syncthreads();
        if (idx < stride) partial_softmax[idx] = fmaxf(partial_softmax[idx], partial_softmax[idx + stride]);
    }
    if (idx == 0) maxval = partial_softmax[0];
    __syncthreads();

    float ev = t2 <= t1 ? expf(scale * weights[idx] - maxval) : 0.0f;
    partial_softmax[idx] = ev;
    for (unsigned int stride = blockDim.x / 2; stride >= 1; stride >>= 1) {
        __syncthreads();
        if (idx < stride) partial_softmax[idx] += partial_softmax[idx + stride];
    }
    if (idx == 0) sumval = partial_softmax[0];
    __syncthreads();

    if (t2 <= t1) weights[idx] = ev * (1.0f / sumval);

    for (int hs = 0; hs < HS; ++hs) {
        __syncthreads();  // the report has none here: thread 0 may still be reading partial_sum[1]
        partial_sum[idx] = t2 <= t1 ? weights[idx] * to_float(v[head + (int64_t)t2 * stride_T + hs]) : 0.0f;
        for (unsigned int stride = blockDim.x / 2; stride >= 1; stride >>= 1) {
            __syncthreads();
            if (idx < stride) partial_sum[idx] += partial_sum[idx + stride];
        }
        if (idx == 0) out[(((int64_t)b * T + t1) * NH + nh) * HS + hs] = from_float<Real>(partial_sum[0]);
    }
}
