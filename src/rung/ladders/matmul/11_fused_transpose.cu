/*---
idea   = "Transpose and conversion in one kernel (transposeToFP16): weight is read once and written once, already half, transposed and padded."
expect = "One launch and one round trip of weight through memory less; the product itself is untouched. Worth most where M is small and preparation dominates."
found  = "Nothing for 8192 rows: 1.44 -> 1.44 ms (1.00x) at 8192 x 768 x 3072 in tf32 on an H200, a tie. For 256, where preparation is a larger part, 66.8 -> 60.0 us (1.11x), as expected; the report's 1.76x (4.46 -> 2.53 ms) was for the preparation alone."
provenance = "ECE 408 GPT-2, milestone 3: the fused transposeToFP16 kernel"
dtypes = ["tf32", "f16"]
[tune]
CONVERT = [256, 4, 8, 16, 32, 64, 128, 512, 1024]
[bind]
M    = "B * T"
C16  = "round_up(C, 16)"
OC16 = "round_up(OC, 16)"
[buffers.weight_half]
shape = ["round_up(C, 16)", "round_up(OC, 16)"]
dtype = "f16"
[buffers.x_half]
shape = ["round_up(B * T, 16)", "round_up(C, 16)"]
dtype = "f16"
[[launch]]
kernel = "transpose_to_half"
grid   = ["ceil_div(C, 32)", "ceil_div(OC, 32)"]
block  = [32, 8]
[[launch]]
kernel = "convert"
grid   = ["ceil_div(round_up(C, 16), CONVERT)", "min(round_up(B * T, 16), max_grid_y)"]
block  = "CONVERT"
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, 16)", "ceil_div(B * T, 16)"]
block  = 32
---*/
#include "rung.cuh"
#include <mma.h>

using namespace nvcuda;

constexpr int TILE = 16;

// weight_half[c][n] = weight[n][c], with zeros up to whole tiles.
extern "C" __global__ void transpose_to_half(const Real* weight, __half* weight_half, int OC, int C, int OC16, int C16)
{
    __shared__ float tile[32][33];
    const int c0 = blockIdx.x * 32, n0 = blockIdx.y * 32;
    for (int i = threadIdx.y; i < 32; i += blockDim.y) {
        const int n = n0 + i, c = c0 + threadIdx.x;
        tile[i][threadIdx.x] = n < OC && c < C ? to_float(weight[size_t(n) * C + c]) : 0.0f;
    }
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += blockDim.y) {
        const int c = c0 + i, n = n0 + threadIdx.x;
        if (n < OC16 && c < C16) weight_half[size_t(c) * OC16 + n] = from_float<__half>(tile[threadIdx.x][i]);
    }
}

// x as half, with zeros up to whole tiles.
extern "C" __global__ void convert(const Real* x, __half* x_half, int M, int C, int C16)
{
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C16) return;
    for (int row = blockIdx.y; row < ceil_div(M, TILE) * TILE; row += gridDim.y) {
        const float value = row < M && c < C ? to_float(x[size_t(row) * C + c]) : 0.0f;
        x_half[size_t(row) * C16 + c] = from_float<__half>(value);
    }
}

extern "C" __global__ void __launch_bounds__(WARP_SIZE)
    matmul(const __half* x_half, const __half* weight_half, const Real* bias, Real* out, int M, int OC, int C16, int OC16)
{
    __shared__ __align__(32) float result[TILE][TILE];
    const int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;

    wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, __half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, __half, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, TILE, TILE, TILE, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int c0 = 0; c0 < C16; c0 += TILE) {
        wmma::load_matrix_sync(a, x_half + size_t(m0) * C16 + c0, C16);
        wmma::load_matrix_sync(b, weight_half + size_t(c0) * OC16 + n0, OC16);
        wmma::mma_sync(sum, a, b, sum);
    }

    wmma::store_matrix_sync(&result[0][0], sum, TILE, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < TILE * TILE; i += WARP_SIZE) {
        const int row = m0 + i / TILE, col = n0 + i % TILE;
        if (row < M && col < OC) {
            const float b_col = bias ? to_float(bias[col]) : 0.0f;
            out[size_t(row) * OC + col] = from_float<Real>(result[i / TILE][i % TILE] + b_col);
        }
    }
}
