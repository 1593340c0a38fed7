/*---
idea   = "The softmax's maximum and sum by trees in shared memory, the last warp without barriers."
expect = "The softmax becomes several times faster at T = 256 and less so at 8192, where it is memory-bound; the whole changes little at large T, since the matrix products grow with T."
found  = "3.25 -> 1.96 ms (1.66x) for the whole at b8t1024 in f32 on an H200 (1.65x in bf16), more than expected: the linear scan took two fifths of the time; 1.11x at b4t64. For one head 1.21x at 256 queries, 1.30x at 1024, 1.51x at 4096 and 1.68x at 8192, growing with T; the milestone's whole attention gained 1.32x, 1.36x and 1.04x, its softmax alone 5.07x, 3.56x and 3.40x."
provenance = "15-418 attention milestone: the softmax 5.07x faster at N = 256 and 1.80x at 8192; the whole 1.03x at 8192."
from   = "attention/7"
inherit = ["bind", "buffers", "tune", "launch"]
dtypes = ["f32", "f16", "bf16"]

# q, k and v are views of one qkv and share their strides
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

struct Add
{
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct Larger
{
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Each step halves the number of active threads; the last warp needs no block barrier.
template <class Combine>
__device__ float tree(float x, Combine combine)
{
    __shared__ float partial[BLOCK];
    int tx = threadIdx.x;
    __syncthreads();  // readers of the previous tree
    partial[tx] = x;
    for (int stride = BLOCK / 2; stride >= WARP_SIZE; stride /= 2) {
        __syncthreads();
        if (tx < stride) partial[tx] = x = combine(x, partial[tx + stride]);
    }
    if (tx < WARP_SIZE) {
        for (int stride = WARP_SIZE / 2; stride > 0; stride /= 2) {
            x = combine(x, __shfl_down_sync(ALL_LANES, x, stride));
        }
        if (tx == 0) partial[0] = x;
    }
    __syncthreads();
    return partial[0];
}

// In place, one block per row.
extern "C" __global__ void softmax(float* scores, int T, float scale, int causal)
{
    int t1 = blockIdx.x;
    float* x = scores + ((int64_t)blockIdx.y * T + t1) * T;
    int end = causal ? t1 + 1 : T;
    float largest = -INFINITY;
    for (int t2 = threadIdx.x; t2 < end; t2 += BLOCK) largest = fmaxf(largest, x[t2]);
    largest = tree(largest, Larger());
    float sum = 0.0f;
    for (int t2 = threadIdx.x; t2 < end; t2 += BLOCK) {
        x[t2] = expf(scale * (x[t2] - largest));
        sum += x[t2];
    }
    sum = tree(sum, Add());
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
