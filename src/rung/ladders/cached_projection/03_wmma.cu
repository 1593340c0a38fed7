/*---
idea   = "One warp per tile of 16 x 16 on the tensor cores, in tf32; tiles whose keys or values all come from the cache only copy."
expect = "The gain of matmul's rung 9 for the tokens that are computed. A new token costs a tile of sixteen, and no two warps share a fragment."
found  = "Slower than rung 2 for short texts on an H200 (92 against 67 us behind 57 tokens), 1.8 times as fast behind 1024: one warp per tile of 16 x 16 leaves most of a multiprocessor empty when there are few tiles."
from   = "matmul/9"
rewrite = "A warp computes a tile of one part (q, k or v) of one text, and skips what the cache has; the fragments are those of matmul's rung."
dtypes = ["tf32"]
needs  = ["sm >= 80", "C % 16 == 0"]
align  = 32
[[launch]]
kernel = "project"
grid   = ["3 * C // 16", "ceil_div(T, 16)", "B"]
block  = 32
---*/
#include "rung.cuh"
#include <mma.h>

using namespace nvcuda;

constexpr int TILE = 16, DEPTH = 8;

template <class Fragment>
__device__ __forceinline__ void round_to_tf32(Fragment& fragment)
{
#pragma unroll
    for (int i = 0; i < fragment.num_elements; i++) fragment.x[i] = wmma::__float_to_tf32(fragment.x[i]);
}

extern "C" __global__ void __launch_bounds__(WARP_SIZE)
    project(const float* x, const float* weight, const float* bias, float* k_cache, float* v_cache, float* out, int T, int C,
            int MAXT, int past)
{
    __shared__ __align__(32) float x_tile[TILE][DEPTH];
    __shared__ __align__(32) float result[TILE][TILE];

    const int t0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE, part = n0 / C, b = blockIdx.z, rows = min(TILE, T - t0);
    wmma::fragment<wmma::matrix_a, TILE, TILE, DEPTH, wmma::precision::tf32, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, TILE, TILE, DEPTH, wmma::precision::tf32, wmma::col_major>
        w;  // weight's rows are columns here
    wmma::fragment<wmma::accumulator, TILE, TILE, DEPTH, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    const bool cached = part > 0 && t0 + rows <= past;
    for (int c0 = 0; c0 < C && !cached; c0 += DEPTH) {
        const float* xs = x + (size_t(b) * T + t0) * C + c0;
        if (rows == TILE) {
            wmma::load_matrix_sync(a, xs, C);
        } else {  // zeros beyond the text's last token
            __syncwarp();
            for (int i = threadIdx.x; i < TILE * DEPTH; i += WARP_SIZE) {
                x_tile[i / DEPTH][i % DEPTH] = i / DEPTH < rows ? xs[size_t(i / DEPTH) * C + i % DEPTH] : 0.0f;
            }
            __syncwarp();
            wmma::load_matrix_sync(a, &x_tile[0][0], DEPTH);
        }
        wmma::load_matrix_sync(w, weight + size_t(n0) * C + c0, C);
        round_to_tf32(a);
        round_to_tf32(w);
        wmma::mma_sync(sum, a, w, sum);
    }
    wmma::store_matrix_sync(&result[0][0], sum, TILE, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < rows * TILE; i += WARP_SIZE) {
        const int t = t0 + i / TILE, oc = n0 + i % TILE;
        float* kept = (part == 1 ? k_cache : v_cache) + (size_t(b) * MAXT + t) * C + oc % C;
        const bool copied = part > 0 && t < past;
        const float value = copied ? *kept : result[i / TILE][i % TILE] + bias[oc];
        out[(size_t(b) * T + t) * 3 * C + oc] = value;
        if (part > 0 && !copied) *kept = value;
    }
}
