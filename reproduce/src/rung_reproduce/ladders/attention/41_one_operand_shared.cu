/*---
idea   = "Joint tiling as the report's counters have it: only K or V is staged in shared memory; a thread takes its row of Q, or of the weights, from global memory into a register and multiplies it by eight columns."
expect = "Half of rung 9's shared stores and one shared load for each product of a thread. The lanes of a warp read eight rows of Q, served by L1: slower than rung 9 where there is enough work."
found  = "28.1 us at b4t64 in f32 on an H200; rung 9 took 18.3 us in an earlier run. Slower, as expected. The profiler counts what the report counted: one shared load for each product of a thread, and half of rung 9's stores."
provenance = "ECE 408 GPT-2 report, milestone 2: joint shared-memory and register tiling, 32x32 tiles, coarsening 8, a 2-D block; the memory chart of its product shows one operand in shared memory."
from   = "attention/9"
side_experiment = "The report's kernel, beside rung 9."
inherit = ["buffers", "tune"]
dtypes = ["f32", "f16", "bf16"]

# q, k and v are views of one qkv and share their strides
bind = { stride_B = "q_stride_B", stride_NH = "q_stride_NH", stride_T = "q_stride_T" }

[[launch]]
kernel = "query_key"
grid   = ["ceil_div(T, 32)", "ceil_div(T, 32)", "B * NH"]
block  = ["32 // COARSE", 32]

[[launch]]
kernel = "softmax"
grid   = ["T", "B * NH"]
block  = "BLOCK"

[[launch]]
kernel = "attend_value"
grid   = ["ceil_div(HS, 32)", "ceil_div(T, 32)", "B * NH"]
block  = ["32 // COARSE", 32]
---*/
#include "rung.cuh"

constexpr int TILE = 32;
constexpr int COLUMNS = TILE / COARSE;  // columns of threads; each thread computes COARSE outputs of one row, COLUMNS apart

// scores (B, NH, T, T) = q @ k^T, for tiles that are not entirely masked
extern "C" __global__ void query_key(const Real* q, const Real* k, float* scores, int T, int NH, int HS, int stride_B,
                                     int stride_NH, int stride_T, int causal)
{
    __shared__ float K[TILE][TILE + 1];
    int tx = threadIdx.x, ty = threadIdx.y, rank = ty * COLUMNS + tx, row0 = blockIdx.y * TILE, key0 = blockIdx.x * TILE;
    if (causal && key0 >= row0 + TILE) return;
    int64_t head = (int64_t)(blockIdx.z / NH) * stride_B + blockIdx.z % NH * stride_NH;
    int t1 = row0 + ty;
    const Real* query = q + head + (int64_t)min(t1, T - 1) * stride_T;
    float sum[COARSE] = {};
    for (int hs0 = 0; hs0 < HS; hs0 += TILE) {
        int hs = hs0 + rank % TILE;
        for (int r = rank / TILE; r < TILE; r += COLUMNS) {
            bool inside = hs < HS && key0 + r < T;
            K[r][rank % TILE] = inside ? to_float(k[head + (int64_t)(key0 + r) * stride_T + hs]) : 0.0f;
        }
        __syncthreads();
        int depth = min(TILE, HS - hs0);
        for (int i = 0; i < depth; i++) {
            float in_register = to_float(query[hs0 + i]);
#pragma unroll
            for (int c = 0; c < COARSE; c++) sum[c] += in_register * K[tx + c * COLUMNS][i];
        }
        __syncthreads();
    }
#pragma unroll
    for (int c = 0; c < COARSE; c++) {
        int t2 = key0 + tx + c * COLUMNS;
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

// out (B, T, NH, HS) = scores @ v
extern "C" __global__ void attend_value(const float* scores, const Real* v, Real* out, int T, int NH, int HS, int stride_B,
                                        int stride_NH, int stride_T, int causal)
{
    __shared__ float V[TILE][TILE + 1];
    int tx = threadIdx.x, ty = threadIdx.y, rank = ty * COLUMNS + tx, row0 = blockIdx.y * TILE, hs0 = blockIdx.x * TILE;
    int b = blockIdx.z / NH, nh = blockIdx.z % NH, t1 = row0 + ty;
    const Real* values = v + (int64_t)b * stride_B + nh * stride_NH;
    const float* weights = scores + ((int64_t)blockIdx.z * T + min(t1, T - 1)) * T;
    int last = causal ? min(T, row0 + TILE) : T, end = causal ? min(T, t1 + 1) : T;
    float sum[COARSE] = {};
    for (int key0 = 0; key0 < last; key0 += TILE) {
        int hs = hs0 + rank % TILE;
        for (int r = rank / TILE; r < TILE; r += COLUMNS) {
            bool inside = hs < HS && key0 + r < T;
            V[r][rank % TILE] = inside ? to_float(values[(int64_t)(key0 + r) * stride_T + hs]) : 0.0f;
        }
        __syncthreads();
        int depth = min(TILE, end - key0);
        for (int i = 0; i < depth; i++) {
            float in_register = weights[key0 + i];
#pragma unroll
            for (int c = 0; c < COARSE; c++) sum[c] += in_register * V[i][tx + c * COLUMNS];
        }
        __syncthreads();
    }
#pragma unroll
    for (int c = 0; c < COARSE; c++) {
        int hs = hs0 + tx + c * COLUMNS;
        if (t1 < T && hs < HS) out[(((int64_t)b * T + t1) * NH + nh) * HS + hs] = from_float<Real>(sum[c]);
    }
}
