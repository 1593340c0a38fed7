/*---
idea   = "Layernorm through residual in one kernel: a block normalises ROWS rows into shared memory, and then, chunk by chunk of the hidden layer, computes 64 hidden values of each row and adds their part of every output."
expect = "No intermediate result leaves the chip, but each block reads both weight matrices whole: fine for a few rows, and far slower than separate kernels for a prompt, where 256 rows are only sixteen blocks on 132 multiprocessors."
found  = "8.49 ms for one token, where torch takes 19 us: the grid has one block."
provenance = "ECE 408 GPT-2, milestone 2: 'the most extreme implementation of this idea would be layernorm through residual, with a swappable attention or gelu call in the middle', which it does not build."
rewrite = "Its one idea joins the parent's kernels, whose tiles are of other shapes."
dtypes = ["f32"]
needs  = "C <= 1600"
[tune]
ROWS = [16, 8]
[define]
C = "C"
[[launch]]
kernel = "mlp"
grid   = "ceil_div(B * T, ROWS)"
block  = 256
shared = "4 * (ROWS * C + ROWS * 64)"
---*/
#include "rung.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP_SIZE, CHUNK = 64;
constexpr int COLUMNS = ceil_div(C, THREADS);  // outputs of a row that a thread sums

// What stands between the two products: replace it to join attention's projection or another activation.
__device__ float middle(float x)
{
    const float SQRT_2_OVER_PI = 0.7978845608028654f;
    return 0.5f * x * (1.0f + tanhf(SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    mlp(const float* x, const float* ln_weight, const float* ln_bias, const float* w1, const float* b1, const float* w2,
        const float* b2, float* out, int B, int T, int F, float eps)
{
    extern __shared__ float shared[];
    float* normed = shared;             // (ROWS, C)
    float* hidden = shared + ROWS * C;  // (ROWS, CHUNK)
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE, row0 = blockIdx.x * ROWS, M = B * T;

    for (int r = warp; r < ROWS; r += WARPS) {  // one warp per row
        const float* in = x + int64_t(min(row0 + r, M - 1)) * C;
        float sum = 0.0f;
        for (int c = lane; c < C; c += WARP_SIZE) sum += in[c];
        const float mean = warp_sum(sum) / C;
        float squares = 0.0f;
        for (int c = lane; c < C; c += WARP_SIZE) squares += (in[c] - mean) * (in[c] - mean);
        const float rstd = rsqrtf(warp_sum(squares) / C + eps);
        for (int c = lane; c < C; c += WARP_SIZE) normed[r * C + c] = (in[c] - mean) * rstd * ln_weight[c] + ln_bias[c];
    }

    float sums[COLUMNS][ROWS] = {};
    for (int f0 = 0; f0 < F; f0 += CHUNK) {
        const int chunk = min(CHUNK, F - f0);
        __syncthreads();                             // the rows are normalised, or the chunk before has been read
        for (int f = warp; f < chunk; f += WARPS) {  // one warp per hidden value, of all rows
            float part[ROWS] = {};
            for (int c = lane; c < C; c += WARP_SIZE) {
                const float w = w1[int64_t(f0 + f) * C + c];
#pragma unroll
                for (int r = 0; r < ROWS; r++) part[r] += normed[r * C + c] * w;
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float whole = warp_sum(part[r]);
                if (lane == 0) hidden[r * CHUNK + f] = middle(whole + b1[f0 + f]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            const int c = threadIdx.x + i * THREADS;
            for (int f = 0; f < chunk && c < C; f++) {
                const float w = w2[int64_t(c) * F + f0 + f];
#pragma unroll
                for (int r = 0; r < ROWS; r++) sums[i][r] += hidden[r * CHUNK + f] * w;
            }
        }
    }

#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const int c = threadIdx.x + i * THREADS;
        if (c >= C) continue;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t at = int64_t(row0 + r) * C + c;
            if (row0 + r < M) out[at] = x[at] + sums[i][r] + b2[c];
        }
    }
}
