/*---
idea   = "One block per query of a head, one thread per key of its window: scores, softmax and output in one kernel, every sum a tree in shared memory."
expect = "Cost grows with T times the window. The output's HS trees, a barrier at each level, are most of the time."
found  = "On an H200 169 us at b4t64 and 9.37 ms at b8t1024 in f32 (bf16: 170 us, 9.49 ms), 0.15x and 0.10x the speed of torch's memory-efficient attention (bf16: 0.12x, 0.03x) and behind torch's naive one: 32x the queries take 55x the time. That the trees dominate is inferred: rung 2, which has none, takes 0.28x and 0.36x of this time."
provenance = "ECE 408 GPT-2 report, milestone 3, local attention: 4.44 ms at B 4, T 64, NH 12, window 128 on an A40, 106x its five kernels. There the window ended one key short of the query's own; here it includes it."
from   = "attention/6"
dtypes = ["f32", "f16", "bf16"]
needs  = ["1 <= window <= 1024", "globals == 0"]

# q, k and v are views of one qkv and share their strides
bind = { stride_B = "q_stride_B", stride_NH = "q_stride_NH", stride_T = "q_stride_T" }

[[launch]]
kernel = "local_attention"
grid   = ["T", "NH", "B"]
block  = "window"
shared = "4 * window"
[model]
serves = { naive = 1 }
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

// Combines one value per thread, in a tree over shared memory; any block size will do.
template <class Combine>
__device__ float tree(float x, float* partial, Combine combine)
{
    int idx = threadIdx.x;
    __syncthreads();  // readers of the previous tree
    partial[idx] = x;
    for (int left = blockDim.x; left > 1; left = (left + 1) / 2) {
        int stride = (left + 1) / 2;
        __syncthreads();
        if (idx + stride < left) partial[idx] = combine(partial[idx], partial[idx + stride]);
    }
    __syncthreads();
    return partial[0];
}

extern "C" __global__ void local_attention(const Real* q, const Real* k, const Real* v, Real* out, int T, int NH, int HS,
                                           int stride_B, int stride_NH, int stride_T, int window, float scale)
{
    extern __shared__ float partial[];  // (window)
    int t1 = blockIdx.x, nh = blockIdx.y, b = blockIdx.z, idx = threadIdx.x;
    int t2 = max(0, t1 - window + 1) + idx;
    bool seen = t2 <= t1;
    int64_t head = (int64_t)b * stride_B + nh * stride_NH;
    const Real* query = q + head + (int64_t)t1 * stride_T;
    const Real* key = k + head + (int64_t)t2 * stride_T;
    const Real* value = v + head + (int64_t)t2 * stride_T;

    float score = -INFINITY;
    if (seen) {
        float sum = 0.0f;
        for (int hs = 0; hs < HS; hs++) sum += to_float(query[hs]) * to_float(key[hs]);
        score = scale * sum;
    }
    float largest = tree(score, partial, Larger());
    float weight = seen ? expf(score - largest) : 0.0f;
    weight /= tree(weight, partial, Add());
    for (int hs = 0; hs < HS; hs++) {
        float o = tree(seen ? weight * to_float(value[hs]) : 0.0f, partial, Add());
        if (idx == 0) out[(((int64_t)b * T + t1) * NH + nh) * HS + hs] = from_float<Real>(o);
    }
}
