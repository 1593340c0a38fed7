/*---
idea   = "A register tile inside the shared-memory tile: a thread computes eight outputs of one column, and each value of K or V that it reads is used for all eight."
expect = "The matrix products become limited by arithmetic and shared memory equally: two to three times faster than tiles alone."
found  = "1.96 -> 1.06 ms (1.85x) at b8t1024 in f32 on an H200 (1.83x in bf16), a little under the two to three times expected; 1.04x at b4t64 (0.96x in bf16). For one head 0.79x at 256 and 0.86x at 1024, where blocks of 128 threads instead of 1024 presumably leave too few threads active, then 1.51x at 8192."
provenance = "ECE 408 GPT-2 report, milestone 2: joint shared-memory and register tiling, 32x32 tiles, coarsening 8, a 2-D block."
dtypes = ["f32", "f16", "bf16"]

# q, k and v are views of one qkv and share their strides
bind = { stride_B = "q_stride_B", stride_NH = "q_stride_NH", stride_T = "q_stride_T" }
buffers.scores = { shape = ["B", "NH", "T", "T"], dtype = "f32" }

[tune]
BLOCK = [256, 128, 512]
COARSE = [8, 4, 16]

[[launch]]
kernel = "query_key"
grid   = ["ceil_div(T, 32)", "ceil_div(T, 32)", "B * NH"]
block  = [32, "32 // COARSE"]

[[launch]]
kernel = "softmax"
grid   = ["T", "B * NH"]
block  = "BLOCK"

[[launch]]
kernel = "attend_value"
grid   = ["ceil_div(HS, 32)", "ceil_div(T, 32)", "B * NH"]
block  = [32, "32 // COARSE"]
[model]
serves = { tiled = 1, tensorcore = 3 }
---*/
#include "rung.cuh"

constexpr int TILE = 32;
constexpr int ROWS = TILE / COARSE;  // rows of threads; each thread computes COARSE outputs of one column, ROWS apart

// scores (B, NH, T, T) = q @ k^T, for tiles that are not entirely masked
extern "C" __global__ void query_key(const Real* q, const Real* k, float* scores, int T, int NH, int HS, int stride_B,
                                     int stride_NH, int stride_T, int causal)
{
    __shared__ float Q[TILE][TILE];
    __shared__ float K[TILE][TILE + 1];
    int tx = threadIdx.x, ty = threadIdx.y, row0 = blockIdx.y * TILE, key0 = blockIdx.x * TILE;
    if (causal && key0 >= row0 + TILE) return;
    int64_t head = (int64_t)(blockIdx.z / NH) * stride_B + blockIdx.z % NH * stride_NH;
    float sum[COARSE] = {};
    for (int hs0 = 0; hs0 < HS; hs0 += TILE) {
        bool inside = hs0 + tx < HS;
        int64_t at = head + hs0 + tx;
        for (int r = ty; r < TILE; r += ROWS) {
            Q[r][tx] = inside && row0 + r < T ? to_float(q[at + (int64_t)(row0 + r) * stride_T]) : 0.0f;
            K[r][tx] = inside && key0 + r < T ? to_float(k[at + (int64_t)(key0 + r) * stride_T]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; i++) {
            float key = K[tx][i];
#pragma unroll
            for (int c = 0; c < COARSE; c++) sum[c] += Q[ty + c * ROWS][i] * key;
        }
        __syncthreads();
    }
#pragma unroll
    for (int c = 0; c < COARSE; c++) {
        int t1 = row0 + ty + c * ROWS, t2 = key0 + tx;
        if (t1 < T && t2 < T) scores[((int64_t)blockIdx.z * T + t1) * T + t2] = sum[c];
    }
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
    int tx = threadIdx.x, ty = threadIdx.y, row0 = blockIdx.y * TILE, hs = blockIdx.x * TILE + tx;
    int b = blockIdx.z / NH, nh = blockIdx.z % NH;
    const Real* values = v + (int64_t)b * stride_B + nh * stride_NH;
    const float* head = scores + (int64_t)blockIdx.z * T * T;
    int last = causal ? min(T, row0 + TILE) : T;
    float sum[COARSE] = {};
    for (int key0 = 0; key0 < last; key0 += TILE) {
        for (int r = ty; r < TILE; r += ROWS) {
            int t1 = row0 + r, t2 = key0 + tx;
            bool seen = t1 < T && t2 < (causal ? t1 + 1 : T);
            P[r][tx] = seen ? head[(int64_t)t1 * T + t2] : 0.0f;
            V[r][tx] = hs < HS && key0 + r < T ? to_float(values[(int64_t)(key0 + r) * stride_T + hs]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; i++) {
            float value = V[i][tx];
#pragma unroll
            for (int c = 0; c < COARSE; c++) sum[c] += P[ty + c * ROWS][i] * value;
        }
        __syncthreads();
    }
#pragma unroll
    for (int c = 0; c < COARSE; c++) {
        int t1 = row0 + ty + c * ROWS;
        if (t1 < T && hs < HS) out[(((int64_t)b * T + t1) * NH + nh) * HS + hs] = from_float<Real>(sum[c]);
    }
}
