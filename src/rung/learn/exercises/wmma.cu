/*---
idea   = "Tensor cores through WMMA: one warp multiplies tiles of 16 x 16 in half precision, which it copies to shared memory first."
dtypes = ["f16"]
needs  = "sm >= 70"
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, 16)", "ceil_div(B * T, 16)"]
block  = 32
---*/
#include "rung.cuh"
#include <mma.h>

using namespace nvcuda;

// A tile of 16 rows and 16 columns at (row0, col0), with zeros beyond the matrix.
__device__ void copy_tile(__half* tile, const __half* matrix, int row0, int rows, int col0, int cols)
{
    for (int i = threadIdx.x; i < 256; i += 32) {
        const int row = row0 + i / 16, col = col0 + i % 16;
        tile[i] = row < rows && col < cols ? matrix[int64_t(row) * cols + col] : __float2half(0.0f);
    }
}

extern "C" __global__ void matmul(const __half* x, const __half* weight, const __half* bias, __half* out, int B, int T, int C,
                                  int OC)
{
    __shared__ __align__(32) __half xs[256], ws[256];
    __shared__ __align__(32) float result[256];
    const int m0 = blockIdx.y * 16, n0 = blockIdx.x * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, BLANK_1> b;  // a row of weight is a column of b
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int c0 = 0; c0 < C; c0 += 16) {
        copy_tile(xs, x, m0, B * T, c0, C);
        copy_tile(ws, weight, n0, OC, c0, C);
        __syncwarp();
        wmma::load_matrix_sync(a, xs, 16);
        wmma::load_matrix_sync(b, ws, 16);
        BLANK_2;
        __syncwarp();
    }
    wmma::store_matrix_sync(result, sum, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < 256; i += 32) {
        const int m = m0 + i / 16, n = n0 + i % 16;
        if (m < B * T && n < OC) out[int64_t(m) * OC + n] = __float2half(result[i] + (bias ? __half2float(bias[n]) : 0.0f));
    }
}
