/*---
idea   = "Both products in 32x32 tiles of shared memory, straight from the packed QKV: three kernels, and each number loaded from memory serves 32 outputs."
expect = "The matrix products are no longer memory-bound; the softmax, whose maximum and sum one thread of a block computes alone, becomes the longest of the three kernels at large T."
found  = "120 -> 3.25 ms (37.0x) at b8t1024 in f32 on an H200, and 3.47x over rung 5: the first rung with data reuse; 258 -> 20.9 us (12.3x) at b4t64, the same in bf16 (3.27 ms). 0.15x the speed of torch's memory-efficient attention (496 us)."
provenance = "15-418 attention milestone: three kernels with tiled products and a linear softmax; D = 64, N = 256 ... 8192."
rewrite = "A block computes a tile cooperatively: the loop over one output and its tree are gone, and only the parent's softmax stays."
dtypes = ["f32", "f16", "bf16"]

# q, k and v are views of one qkv and share their strides
bind = { stride_B = "q_stride_B", stride_NH = "q_stride_NH", stride_T = "q_stride_T" }
buffers.scores = { shape = ["B", "NH", "T", "T"], dtype = "f32" }

[tune]
BLOCK = [256, 128, 512]

[[launch]]
kernel = "query_key"
grid   = ["ceil_div(T, 32)", "ceil_div(T, 32)", "B * NH"]
block  = [32, 32]

[[launch]]
kernel = "softmax"
grid   = ["T", "B * NH"]
block  = "BLOCK"

[[launch]]
kernel = "attend_value"
grid   = ["ceil_div(HS, 32)", "ceil_div(T, 32)", "B * NH"]
block  = [32, 32]
---*/
#include "rung.cuh"

constexpr int TILE = 32;

// scores (B, NH, T, T) = q @ k^T, for tiles that are not entirely masked
extern "C" __global__ void query_key(const Real* q, const Real* k, float* scores, int T, int NH, int HS, int stride_B,
                                     int stride_NH, int stride_T, int causal)
{
    __shared__ float Q[TILE][TILE];
    __shared__ float K[TILE][TILE + 1];
    int tx = threadIdx.x, ty = threadIdx.y, row0 = blockIdx.y * TILE, key0 = blockIdx.x * TILE;
    if (causal && key0 >= row0 + TILE) return;
    int64_t head = (int64_t)(blockIdx.z / NH) * stride_B + blockIdx.z % NH * stride_NH;
    float sum = 0.0f;
    for (int hs0 = 0; hs0 < HS; hs0 += TILE) {
        bool inside = hs0 + tx < HS;
        int64_t at = head + hs0 + tx;
        Q[ty][tx] = inside && row0 + ty < T ? to_float(q[at + (int64_t)(row0 + ty) * stride_T]) : 0.0f;
        K[ty][tx] = inside && key0 + ty < T ? to_float(k[at + (int64_t)(key0 + ty) * stride_T]) : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum += Q[ty][i] * K[tx][i];
        __syncthreads();
    }
    int t1 = row0 + ty, t2 = key0 + tx;
    if (t1 < T && t2 < T) scores[((int64_t)blockIdx.z * T + t1) * T + t2] = sum;
}

// In place. One thread computes the row's maximum and sum; all threads exponentiate and divide.
extern "C" __global__ void softmax(float* scores, int T, float scale, int causal)
{
    __shared__ float largest, sum;
    int t1 = blockIdx.x;
    float* x = scores + ((int64_t)blockIdx.y * T + t1) * T;
    int end = causal ? t1 + 1 : T;
    if (threadIdx.x == 0) {
        largest = -INFINITY;
        for (int t2 = 0; t2 < end; t2++) largest = fmaxf(largest, x[t2]);
    }
    __syncthreads();
    for (int t2 = threadIdx.x; t2 < end; t2 += BLOCK) x[t2] = expf(scale * (x[t2] - largest));
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0.0f;
        for (int t2 = 0; t2 < end; t2++) sum += x[t2];
    }
    __syncthreads();
    for (int t2 = threadIdx.x; t2 < end; t2 += BLOCK) x[t2] /= sum;
}

// out (B, T, NH, HS) = scores @ v; scores beyond a row's last key count as zeros
extern "C" __global__ void attend_value(const float* scores, const Real* v, Real* out, int T, int NH, int HS, int stride_B,
                                        int stride_NH, int stride_T, int causal)
{
    __shared__ float P[TILE][TILE];
    __shared__ float V[TILE][TILE];
    int tx = threadIdx.x, ty = threadIdx.y, t1 = blockIdx.y * TILE + ty, hs = blockIdx.x * TILE + tx;
    int b = blockIdx.z / NH, nh = blockIdx.z % NH;
    const Real* values = v + (int64_t)b * stride_B + nh * stride_NH;
    const float* row = scores + ((int64_t)blockIdx.z * T + t1) * T;
    int end = t1 >= T ? 0 : causal ? t1 + 1 : T;
    int last = causal ? min(T, (int)(blockIdx.y + 1) * TILE) : T;
    float sum = 0.0f;
    for (int key0 = 0; key0 < last; key0 += TILE) {
        P[ty][tx] = key0 + tx < end ? row[key0 + tx] : 0.0f;
        V[ty][tx] = hs < HS && key0 + ty < T ? to_float(values[(int64_t)(key0 + ty) * stride_T + hs]) : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum += P[ty][i] * V[i][tx];
        __syncthreads();
    }
    if (t1 < T && hs < HS) out[(((int64_t)b * T + t1) * NH + nh) * HS + hs] = from_float<Real>(sum);
}
