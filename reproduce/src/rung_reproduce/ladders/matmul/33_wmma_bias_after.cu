/*---
idea   = "WMMA stores the product straight to global memory, and the warp then reads it back to add the bias, as the report's kernel did."
expect = "Each output is stored twice and loaded once more, and the additions and their addresses are a visible share of the instructions: the ALU and load/store pipes that the report's chart shows. A little slower than rung 9."
found  = "92.3 us at b4t64 in tf32 on an H200; rung 9 took 93.4 us in an earlier run. The second pass over the output costs nothing that shows."
provenance = "ECE 408 GPT-2, milestone 2, tensor cores: store_matrix_sync to global memory, and the bias added 'with loading the data from our global mem, and storing the offset figure back into it'."
from   = "matmul/9"
side_experiment = "The report's epilogue, beside rung 9's."
inherit = ["bind", "launch"]
dtypes = ["tf32"]
needs  = "sm >= 80"
align  = 32
[[launch]]
kernel = "matmul"
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

    const bool whole = OC % 4 == 0 && m0 + TILE <= M && n0 + TILE <= OC;
    if (whole) {
        wmma::store_matrix_sync(out + size_t(m0) * OC + n0, sum, OC, wmma::mem_row_major);
    } else {
        wmma::store_matrix_sync(&result[0][0], sum, TILE, wmma::mem_row_major);
    }
    __syncwarp();
    for (int i = threadIdx.x; i < TILE * TILE; i += WARP_SIZE) {
        const int row = m0 + i / TILE, col = n0 + i % TILE;
        if (row >= M || col >= OC) continue;
        float* at = out + size_t(row) * OC + col;
        const float product = whole ? *at : result[i / TILE][i % TILE];
        *at = product + (bias ? bias[col] : 0.0f);
    }
}
