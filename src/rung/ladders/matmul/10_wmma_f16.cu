/*---
idea   = "Half precision: tiles of 16 x 16 x 16, one warp per block, after two kernels have transposed weight and converted it to half, padded to whole tiles."
expect = "Half the bytes and twice the depth per instruction compared with tf32, and no edges inside the loop. Three launches and several passes over weight come first, which do not pay at small M."
found  = "2.74 -> 1.44 ms (1.90x) at 8192 x 768 x 3072 in tf32 on an H200, preparation included: half the bytes, about half the time; 93.7 -> 66.8 us (1.40x) for 256 rows, where the passes over weight weigh more. 0.08x cublasLt's speed, and slower than f32 without tensor cores (rung 8, 869 us)."
provenance = "ECE 408 GPT-2, milestones 2 and 3: FP16 WMMA 16x16x16 with transpose and conversion as separate kernels"
dtypes = ["tf32", "f16"]
[bind]
M    = "B * T"
C16  = "round_up(C, 16)"
OC16 = "round_up(OC, 16)"
[buffers.weight_turned]
shape = ["C", "OC"]
[buffers.weight_half]
shape = ["round_up(C, 16)", "round_up(OC, 16)"]
dtype = "f16"
[buffers.x_half]
shape = ["round_up(B * T, 16)", "round_up(C, 16)"]
dtype = "f16"
[[launch]]
kernel = "transpose"
grid   = ["ceil_div(C, 32)", "ceil_div(OC, 32)"]
block  = [32, 8]
[[launch]]
kernel = "convert"
grid   = ["ceil_div(round_up(OC, 16), 256)", "min(round_up(C, 16), max_grid_y)"]
block  = 256
bind   = { from = "weight_turned", to = "weight_half", rows = "C", cols = "OC", padded_rows = "round_up(C, 16)", padded_cols = "round_up(OC, 16)" }
[[launch]]
kernel = "convert"
grid   = ["ceil_div(round_up(C, 16), 256)", "min(round_up(B * T, 16), max_grid_y)"]
block  = 256
bind   = { from = "x", to = "x_half", rows = "B * T", cols = "C", padded_rows = "round_up(B * T, 16)", padded_cols = "round_up(C, 16)" }
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, 16)", "ceil_div(B * T, 16)"]
block  = 32
---*/
#include "rung.cuh"
#include <mma.h>

using namespace nvcuda;

constexpr int TILE = 16;

extern "C" __global__ void transpose(const Real* weight, Real* weight_turned, int OC, int C)
{
    __shared__ Real tile[32][33];
    const int c0 = blockIdx.x * 32, n0 = blockIdx.y * 32;
    for (int i = threadIdx.y; i < 32; i += blockDim.y) {
        const int n = n0 + i, c = c0 + threadIdx.x;
        if (n < OC && c < C) tile[i][threadIdx.x] = weight[size_t(n) * C + c];
    }
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += blockDim.y) {
        const int c = c0 + i, n = n0 + threadIdx.x;
        if (n < OC && c < C) weight_turned[size_t(c) * OC + n] = tile[threadIdx.x][i];
    }
}

// To half, with zeros around the matrix up to whole tiles.
extern "C" __global__ void convert(const Real* from, __half* to, int rows, int cols, int padded_rows, int padded_cols)
{
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= padded_cols) return;
    for (int row = blockIdx.y; row < padded_rows; row += gridDim.y) {
        const float value = row < rows && col < cols ? to_float(from[size_t(row) * cols + col]) : 0.0f;
        to[size_t(row) * padded_cols + col] = from_float<__half>(value);
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
