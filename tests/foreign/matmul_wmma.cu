/*---
idea = "One warp per 16 x 16 tile of results."
dtypes = ["f16"]
needs = ["B * T % 16 == 0", "OC % 16 == 0", "C % 16 == 0"]
[bind]
M = "B * T"
N = "OC"
K = "C"
a = "x"
b = "weight"
c = "out"
[[launch]]
kernel = "wmma_matmul"
grid = ["OC // 16", "B * T // 16"]
block = 32
---*/
// The linear layer on tensor cores through WMMA fragments; the sizes are multiples of 16.
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

__global__ void wmma_matmul(const half* a, const half* b, const half* bias, half* c, int M, int N, int K) {
    __shared__ float tile[16 * 16];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a_frag;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b_frag;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
    wmma::fill_fragment(acc, 0.0f);
    const int row = blockIdx.y * 16, col = blockIdx.x * 16;
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(a_frag, a + row * K + k, K);
        wmma::load_matrix_sync(b_frag, b + col * K + k, K);
        wmma::mma_sync(acc, a_frag, b_frag, acc);
    }
    wmma::store_matrix_sync(tile, acc, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < 256; i += 32) {
        const float add = bias ? __half2float(bias[col + i % 16]) : 0.0f;
        c[(row + i / 16) * N + col + i % 16] = __float2half(tile[i] + add);
    }
}
