/*---
idea   = "Two fragments of each operand: the next pair is loaded before the present pair is multiplied."
expect = "Loads and products overlap inside a warp. With 32 warps to switch between, there may be little left to hide."
found  = "Slower again: 1.50 -> 1.54 ms (0.97x) at 8192 x 768 x 3072 in tf32 on an H200, 0.96x for 256 rows (in f16 a tie); the report gained 'an insignificant amount'. With 32 warps to switch between little was left to hide, as suspected."
provenance = "ECE 408 GPT-2, milestone 3: double buffering of the fragments, which gained little there"
from   = "matmul/12"
inherit = ["bind", "buffers", "launch"]
dtypes = ["tf32", "f16"]
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

constexpr int WARPS = 32;

extern "C" __global__ void __launch_bounds__(WARPS* WARP_SIZE, 1)
    matmul(const __half* x_half, const __half* weight_half, const Real* bias, Real* out, int M, int OC, int C16, int OC16)
{
    __shared__ __align__(32) float results[WARPS][TILE][TILE];
    const int m0 = blockIdx.y * TILE, n0 = (blockIdx.x * WARPS + threadIdx.y) * TILE;
    if (n0 >= OC) return;
    const __half* xs = x_half + size_t(m0) * C16;
    const __half* ws = weight_half + n0;
    const size_t w_step = size_t(TILE) * OC16;

    wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, __half, wmma::row_major> a0, a1;
    wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, __half, wmma::row_major> b0, b1;
    wmma::fragment<wmma::accumulator, TILE, TILE, TILE, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    wmma::load_matrix_sync(a0, xs, C16);
    wmma::load_matrix_sync(b0, ws, OC16);
    // In pairs, since a variable index would put the fragments into local memory.
    for (int left = C16 / TILE; left > 0; left -= 2) {
        if (left > 1) {
            wmma::load_matrix_sync(a1, xs += TILE, C16);
            wmma::load_matrix_sync(b1, ws += w_step, OC16);
        }
        wmma::mma_sync(sum, a0, b0, sum);
        if (left > 2) {
            wmma::load_matrix_sync(a0, xs += TILE, C16);
            wmma::load_matrix_sync(b0, ws += w_step, OC16);
        }
        if (left > 1) wmma::mma_sync(sum, a1, b1, sum);
    }

    float (&result)[TILE][TILE] = results[threadIdx.y];
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
