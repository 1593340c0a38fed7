/*---
idea   = "Standard attention, forward and backward: the probabilities P are written to memory forward and read backward, where dS is written and read as well; one kernel per product."
expect = "Each of T x T numbers crosses the memory bus about ten times. Correct and slow: bound by traffic long before arithmetic, and by uncoalesced loads of the transposed products."
provenance = "The lecture's flash attention table (from the paper): standard attention, 40.3 GB to and from memory, 41.7 ms forward and backward on an A100."
dtypes = ["f32", "f16", "bf16"]

buffers.p  = { shape = ["B", "NH", "T", "T"], dtype = "f32" }
buffers.ds = { shape = ["B", "NH", "T", "T"], dtype = "f32" }

[[launch]]
kernel = "probabilities"
grid   = ["T", "NH", "B"]
block  = 128

[[launch]]
kernel = "attend"
grid   = ["ceil_div(HS, 32)", "ceil_div(T, 8)", "B * NH"]
block  = [32, 8]

[[launch]]
kernel = "score_gradients"
grid   = ["T", "NH", "B"]
block  = 128

[[launch]]
kernel = "gradients"
grid   = ["ceil_div(HS, 32)", "ceil_div(T, 8)", "B * NH"]
block  = [32, 8]
---*/
#include "rung.cuh"

// Where head nh of part 0 (q), 1 (k) or 2 (v) begins; rows are 3 C apart.
__device__ __forceinline__ int64_t head_of(int part, int b, int nh, int T, int C, int HS)
{
    return (int64_t)b * T * 3 * C + part * C + nh * HS;
}

extern "C" __global__ void probabilities(const Real* qkv, float* p, int T, int C, int NH, int HS, float scale)
{
    const int t1 = blockIdx.x, nh = blockIdx.y, b = blockIdx.z;
    const Real* q = qkv + head_of(0, b, nh, T, C, HS) + (int64_t)t1 * 3 * C;
    const Real* k = qkv + head_of(1, b, nh, T, C, HS);
    float* row = p + (((int64_t)b * NH + nh) * T + t1) * T;
    float largest = -INFINITY;
    // perhaps never several turns: a ladder's cases have fewer tokens than a block has threads
    for (int t2 = threadIdx.x; t2 <= t1; t2 += blockDim.x) {
        float sum = 0.0f;
        // perhaps never one turn: a ladder's cases have wider heads
        for (int hs = 0; hs < HS; hs++) sum += to_float(q[hs]) * to_float(k[(int64_t)t2 * 3 * C + hs]);
        row[t2] = scale * sum;
        largest = fmaxf(largest, row[t2]);
    }
    largest = block_max(largest);
    float sum = 0.0f;
    // perhaps never several turns: a ladder's cases have fewer tokens than a block has threads
    for (int t2 = threadIdx.x; t2 <= t1; t2 += blockDim.x) {
        row[t2] = expf(row[t2] - largest);
        sum += row[t2];
    }
    sum = block_sum(sum);
    // perhaps never several turns: a ladder's cases have fewer tokens than a block has threads
    for (int t2 = threadIdx.x; t2 <= t1; t2 += blockDim.x) row[t2] /= sum;
}

extern "C" __global__ void attend(const Real* qkv, const float* p, Real* out, int T, int C, int NH, int HS)
{
    const int hs = blockIdx.x * blockDim.x + threadIdx.x, t1 = blockIdx.y * blockDim.y + threadIdx.y;
    const int nh = blockIdx.z % NH, b = blockIdx.z / NH;
    if (hs >= HS || t1 >= T) return;
    const Real* v = qkv + head_of(2, b, nh, T, C, HS) + hs;
    const float* row = p + ((int64_t)blockIdx.z * T + t1) * T;
    float sum = 0.0f;
    for (int t2 = 0; t2 <= t1; t2++) sum += row[t2] * to_float(v[(int64_t)t2 * 3 * C]);
    out[((int64_t)b * T + t1) * C + nh * HS + hs] = from_float<Real>(sum);
}

// ds = p (dp - sum(p dp)) scale, with dp = dout v^T
extern "C" __global__ void score_gradients(const Real* qkv, const Real* dout, const float* p, float* ds, int T, int C, int NH,
                                           int HS, float scale)
{
    const int t1 = blockIdx.x, nh = blockIdx.y, b = blockIdx.z;
    const Real* v = qkv + head_of(2, b, nh, T, C, HS);
    const Real* d = dout + ((int64_t)b * T + t1) * C + nh * HS;
    const int64_t at = (((int64_t)b * NH + nh) * T + t1) * T;
    float total = 0.0f;
    // perhaps never several turns: a ladder's cases have fewer tokens than a block has threads
    for (int t2 = threadIdx.x; t2 <= t1; t2 += blockDim.x) {
        float dp = 0.0f;
        // perhaps never one turn: a ladder's cases have wider heads
        for (int hs = 0; hs < HS; hs++) dp += to_float(d[hs]) * to_float(v[(int64_t)t2 * 3 * C + hs]);
        ds[at + t2] = dp;
        total += p[at + t2] * dp;
    }
    total = block_sum(total);
    // perhaps never several turns: a ladder's cases have fewer tokens than a block has threads
    for (int t2 = threadIdx.x; t2 <= t1; t2 += blockDim.x) ds[at + t2] = p[at + t2] * (ds[at + t2] - total) * scale;
}

// dq = ds k, dk = ds^T q, dv = p^T dout: one element of each per thread.
extern "C" __global__ void gradients(const Real* qkv, const Real* dout, const float* p, const float* ds, Real* dqkv, int T, int C,
                                     int NH, int HS)
{
    const int hs = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y * blockDim.y + threadIdx.y;
    const int nh = blockIdx.z % NH, b = blockIdx.z / NH;
    if (hs >= HS || t >= T) return;
    const int64_t head = (int64_t)blockIdx.z * T * T, step = 3 * C;
    const Real* q = qkv + head_of(0, b, nh, T, C, HS) + hs;
    const Real* k = qkv + head_of(1, b, nh, T, C, HS) + hs;
    const Real* d = dout + (int64_t)b * T * C + nh * HS + hs;
    float dq = 0.0f, dk = 0.0f, dv = 0.0f;
    for (int t2 = 0; t2 <= t; t2++) dq += ds[head + (int64_t)t * T + t2] * to_float(k[t2 * step]);
    for (int t1 = t; t1 < T; t1++) {
        dk += ds[head + (int64_t)t1 * T + t] * to_float(q[t1 * step]);
        dv += p[head + (int64_t)t1 * T + t] * to_float(d[(int64_t)t1 * C]);
    }
    Real* to = dqkv + head_of(0, b, nh, T, C, HS) + t * step + hs;
    to[0] = from_float<Real>(dq);
    to[C] = from_float<Real>(dk);
    to[2 * C] = from_float<Real>(dv);
}
