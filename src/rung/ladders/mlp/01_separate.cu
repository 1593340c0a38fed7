/*---
idea   = "Four kernels, one after the other: layernorm, a product with GELU in its epilogue, a product with the residual in its."
expect = "Every intermediate result crosses the memory bus twice, which is little beside the products' own reads; the products are rung matmul/5's kind without its register tiles, so they bound the time."
provenance = "ECE 408 GPT-2, milestone 2: the calls that its proposal would join, layernorm, matmul, GELU, matmul, residual."
dtypes = ["f32"]

buffers.normed = { shape = ["B", "T", "C"], dtype = "f32" }
buffers.hidden = { shape = ["B", "T", "F"], dtype = "f32" }

[[launch]]
kernel = "layernorm"
grid   = "B * T"
block  = 256

[[launch]]
kernel = "up"
grid   = ["ceil_div(F, 32)", "ceil_div(B * T, 32)"]
block  = [32, 32]

[[launch]]
kernel = "down"
grid   = ["ceil_div(C, 32)", "ceil_div(B * T, 32)"]
block  = [32, 32]
---*/
#include "rung.cuh"

constexpr int TILE = 32;

__device__ float gelu_tanh(float x)
{
    const float SQRT_2_OVER_PI = 0.7978845608028654f;
    return 0.5f * x * (1.0f + tanhf(SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)));
}

extern "C" __global__ void layernorm(const float* x, const float* ln_weight, const float* ln_bias, float* normed, int C,
                                     float eps)
{
    const float* in = x + int64_t(blockIdx.x) * C;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < C; c += blockDim.x) sum += in[c];
    const float mean = block_sum(sum) / C;
    float squares = 0.0f;
    for (int c = threadIdx.x; c < C; c += blockDim.x) squares += (in[c] - mean) * (in[c] - mean);
    const float rstd = rsqrtf(block_sum(squares) / C + eps);
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        normed[int64_t(blockIdx.x) * C + c] = (in[c] - mean) * rstd * ln_weight[c] + ln_bias[c];
    }
}

// The sum of this thread's output, x (M, K) times weight (N, K).
__device__ float product(const float* x, const float* weight, int M, int N, int K)
{
    __shared__ float x_tile[TILE][TILE + 1];
    __shared__ float w_tile[TILE][TILE + 1];
    const int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * TILE + ty, w_row = blockIdx.x * TILE + ty;
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        const int k = k0 + tx;
        x_tile[ty][tx] = row < M && k < K ? x[int64_t(row) * K + k] : 0.0f;
        w_tile[ty][tx] = w_row < N && k < K ? weight[int64_t(w_row) * K + k] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; i++) sum += x_tile[ty][i] * w_tile[tx][i];
        __syncthreads();
    }
    return sum;
}

extern "C" __global__ void up(const float* normed, const float* w1, const float* b1, float* hidden, int B, int T, int C, int F)
{
    const float sum = product(normed, w1, B * T, F, C);
    const int row = blockIdx.y * TILE + threadIdx.y, f = blockIdx.x * TILE + threadIdx.x;
    if (row < B * T && f < F) hidden[int64_t(row) * F + f] = gelu_tanh(sum + b1[f]);
}

extern "C" __global__ void down(const float* hidden, const float* w2, const float* b2, const float* x, float* out, int B, int T,
                                int C, int F)
{
    const float sum = product(hidden, w2, B * T, C, F);
    const int row = blockIdx.y * TILE + threadIdx.y, c = blockIdx.x * TILE + threadIdx.x;
    if (row < B * T && c < C) out[int64_t(row) * C + c] = x[int64_t(row) * C + c] + sum + b2[c];
}
