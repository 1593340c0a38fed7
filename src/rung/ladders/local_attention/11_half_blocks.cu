/*---
idea   = "Blocks of window / KEYS threads: a thread computes KEYS keys of the strip and adds them before each tree, so that every thread takes part in a tree's first step."
expect = "Half as many threads, and one level and one barrier fewer in each of the HS + 2 trees: less than rung 10's time, and more threads of a warp active."
found  = "165 -> 136 us (1.21x) at b4t64 in f32 on an H200: the suggestion holds."
provenance = "ECE 408 GPT-2 report, milestone 3, local attention: 'launching blocks of size window_size/2 and having every thread compute two elements of the strip', which it suggests against its divergence (31.5 threads of a warp falling to 19.8)."
from   = "local_attention/10"
side_experiment = "The report's suggestion, on rung 10."
inherit = ["bind"]
dtypes = ["f32", "f16", "bf16"]
needs  = ["KEYS <= window <= 1024", "window & (window - 1) == 0", "globals == 0"]

[tune]
KEYS = [2, 1, 4]

[define]
WINDOW_SIZE = "window"

[[launch]]
kernel = "local_attention"
grid   = ["T", "NH", "B"]
block  = "window // KEYS"
---*/
#include "rung.cuh"

constexpr int NTHREADS = WINDOW_SIZE / KEYS;

extern "C" __global__ void local_attention(const Real* q, const Real* k, const Real* v, Real* out, int T, int NH, int HS,
                                           int stride_B, int stride_NH, int stride_T, float scale)
{
    __shared__ float weights[WINDOW_SIZE];
    __shared__ float partial_softmax[NTHREADS];
    __shared__ float partial_sum[NTHREADS];
    __shared__ float maxval;
    __shared__ float sumval;
    int t1 = blockIdx.x, nh = blockIdx.y, b = blockIdx.z, idx = threadIdx.x;
    int ts = max(0, t1 - WINDOW_SIZE + 1);
    int64_t head = (int64_t)b * stride_B + nh * stride_NH;

    float largest = -INFINITY;
    for (int i = idx; i < WINDOW_SIZE; i += NTHREADS) {
        int t2 = i + ts;
        if (t2 > t1) continue;
        float sum = 0.0f;
        for (int hs = 0; hs < HS; hs++) {
            sum += to_float(k[head + (int64_t)t2 * stride_T + hs]) * to_float(q[head + (int64_t)t1 * stride_T + hs]);
        }
        weights[i] = scale * sum;
        largest = fmaxf(largest, weights[i]);
    }

    partial_softmax[idx] = largest;
    for (unsigned int stride = NTHREADS / 2; stride >= 1; stride >>= 1) {
        __syncthreads();
        if (idx < stride) partial_softmax[idx] = fmaxf(partial_softmax[idx], partial_softmax[idx + stride]);
    }
    if (idx == 0) maxval = partial_softmax[0];
    __syncthreads();

    float sum = 0.0f;
    for (int i = idx; i < WINDOW_SIZE; i += NTHREADS) {
        if (i + ts > t1) continue;
        weights[i] = expf(weights[i] - maxval);
        sum += weights[i];
    }
    partial_softmax[idx] = sum;
    for (unsigned int stride = NTHREADS / 2; stride >= 1; stride >>= 1) {
        __syncthreads();
        if (idx < stride) partial_softmax[idx] += partial_softmax[idx + stride];
    }
    if (idx == 0) sumval = partial_softmax[0];
    __syncthreads();

    float norm = 1.0f / sumval;
    for (int hs = 0; hs < HS; ++hs) {
        __syncthreads();  // thread 0 has read the sum of the column before
        float o = 0.0f;
        for (int i = idx; i < WINDOW_SIZE; i += NTHREADS) {
            if (i + ts <= t1) o += weights[i] * norm * to_float(v[head + (int64_t)(i + ts) * stride_T + hs]);
        }
        partial_sum[idx] = o;
        for (unsigned int stride = NTHREADS / 2; stride >= 1; stride >>= 1) {
            __syncthreads();
            if (idx < stride) partial_sum[idx] += partial_sum[idx + stride];
        }
        if (idx == 0) out[(((int64_t)b * T + t1) * NH + nh) * HS + hs] = from_float<Real>(partial_sum[0]);
    }
}
