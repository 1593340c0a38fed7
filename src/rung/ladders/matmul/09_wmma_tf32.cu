/*---
idea   = "Tensor cores, the short way: one warp per block multiplies tiles of 16 x 16 x 8 in tf32, its fragments loaded straight from global memory."
expect = "The arithmetic becomes nearly free and the loads do not: each loaded value is used for 16 outputs, and warps share data only through the caches. Bound by memory traffic, but faster than plain tiles."
found  = "2.74 ms at 8192 x 768 x 3072 in tf32 on an H200, 3.4 % of the measured rate: faster than rung 4's plain tiles in f32 (3.15 ms) as expected, far slower than rung 8's (869 us). cublasLt is 25.3x as fast, 9.60x for 256 rows (93.7 us), where the report saw 4.70x on an A40."
provenance = "ECE 408 GPT-2, milestone 2: tensor cores through WMMA, TF32 16x16x8, one warp per block, no shared tiles"
dtypes = ["tf32"]
needs  = "sm >= 80"
align  = 32
[bind]
M = "B * T"
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, 16)", "ceil_div(B * T, 16)"]
block  = 32
[model]
serves = { naive = 2, reduction = 2, tiled = 2 }
---*/
#include "rung.cuh"
#include <mma.h>

using namespace nvcuda;

constexpr int TILE = 16, DEPTH = 8;

// A tile of 16 rows and 8 columns at (r0, c0) with zeros beyond the matrix, for tiles that WMMA cannot load itself.
__device__ __forceinline__ void copy_edge(float (&tile)[TILE][DEPTH], const float* matrix, int r0, int rows, int c0, int C)
{
    __syncwarp();
    for (int i = threadIdx.x; i < TILE * DEPTH; i += WARP_SIZE) {
        const int r = r0 + i / DEPTH, c = c0 + i % DEPTH;
        tile[i / DEPTH][i % DEPTH] = r < rows && c < C ? matrix[size_t(r) * C + c] : 0.0f;
    }
    __syncwarp();
}

template <class Fragment>
__device__ __forceinline__ void round_to_tf32(Fragment& fragment)
{
#pragma unroll
    for (int i = 0; i < fragment.num_elements; i++) fragment.x[i] = wmma::__float_to_tf32(fragment.x[i]);
}

extern "C" __global__ void __launch_bounds__(WARP_SIZE)
    matmul(const float* x, const float* weight, const float* bias, float* out, int M, int OC, int C)
{
    __shared__ __align__(32) float edge[TILE][DEPTH];
    __shared__ __align__(32) float result[TILE][TILE];

    const int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
    const bool aligned = C % 4 == 0;  // as WMMA requires of a leading dimension in floats
    const bool x_inside = aligned && m0 + TILE <= M, w_inside = aligned && n0 + TILE <= OC;

    wmma::fragment<wmma::matrix_a, TILE, TILE, DEPTH, wmma::precision::tf32, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, TILE, TILE, DEPTH, wmma::precision::tf32, wmma::col_major>
        b;  // weight's rows are columns here
    wmma::fragment<wmma::accumulator, TILE, TILE, DEPTH, float> sum;
    wmma::fill_fragment(sum, 0.0f);

    for (int c0 = 0; c0 < C; c0 += DEPTH) {
        const bool whole = c0 + DEPTH <= C;
        if (x_inside && whole) {
            wmma::load_matrix_sync(a, x + size_t(m0) * C + c0, C);
        } else {
            copy_edge(edge, x, m0, M, c0, C);
            wmma::load_matrix_sync(a, &edge[0][0], DEPTH);
        }
        if (w_inside && whole) {
            wmma::load_matrix_sync(b, weight + size_t(n0) * C + c0, C);
        } else {
            copy_edge(edge, weight, n0, OC, c0, C);
            wmma::load_matrix_sync(b, &edge[0][0], DEPTH);
        }
        round_to_tf32(a);
        round_to_tf32(b);
        wmma::mma_sync(sum, a, b, sum);
    }

    wmma::store_matrix_sync(&result[0][0], sum, TILE, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < TILE * TILE; i += WARP_SIZE) {
        const int row = m0 + i / TILE, col = n0 + i % TILE;
        if (row < M && col < OC) out[size_t(row) * OC + col] = result[i / TILE][i % TILE] + (bias ? bias[col] : 0.0f);
    }
}
