/*---
idea   = "Rung 29 without __launch_bounds__(1024, 1): the compiler has to assume blocks of 1,024 threads by itself."
expect = "Other registers for the same loop, 40 a thread in place of 64, and about the same time: the loads of a fragment wait for memory either way."
found  = "Slower: 603 -> 743 us (0.81x) for the kernel of the product at 256 x 768 x 50257 in tf32 on an H200, with 40 registers a thread as expected."
provenance = "ECE 408 GPT-2 report, milestone 3: launch bounds are one of its small changes, 'allowing for some slight optimization'."
from   = "matmul/29"
side_experiment = "The report's experiment, on rung 29."
inherit = ["bind", "buffers", "tune", "launch"]
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

constexpr int WARPS = 32, COLUMNS = WARPS / ROWS;

extern "C" __global__ void matmul(const __half* x_half, const __half* weight_half, const Real* bias, Real* out, int M, int OC,
                                  int C16, int OC16)
{
    __shared__ __align__(32) float results[WARPS][TILE][TILE];
    const int m0 = (blockIdx.y * ROWS + threadIdx.y % ROWS) * TILE, n0 = (blockIdx.x * COLUMNS + threadIdx.y / ROWS) * TILE;
    if (m0 >= M || n0 >= OC) return;
    const __half* xs = x_half + size_t(m0) * C16;
    const __half* ws = weight_half + n0;
    const size_t w_step = size_t(TILE) * OC16;

    wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, __half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, __half, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, TILE, TILE, TILE, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int c0 = 0; c0 < C16; c0 += TILE) {
        wmma::load_matrix_sync(a, xs, C16);
        wmma::load_matrix_sync(b, ws, OC16);
        wmma::mma_sync(sum, a, b, sum);
        xs += TILE;
        ws += w_step;
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
