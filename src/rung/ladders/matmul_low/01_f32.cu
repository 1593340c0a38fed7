/*---
idea   = "Float32 on the CUDA cores: tiles of 64 x 64 in shared memory, four by four outputs per thread, one multiplication per lane and instruction."
expect = "At best the rate of the FMA units; the baseline for fewer bits."
found  = "Half of the FMA units' rate at 4096 on an H200 (5.56 ms; cuBLAS 2.73): tiles of four by four outputs read shared memory as often as they multiply."
from   = "matmul/5"
dtypes = ["f32"]
[[launch]]
kernel = "product"
grid   = ["ceil_div(OC, 64)", "ceil_div(M, 64)"]
block  = 256
---*/
#include "rung.cuh"

constexpr int TILE = 64, DEPTH = 16;

extern "C" __global__ void __launch_bounds__(256) product(const float* x, const float* weight, float* out, int M, int OC, int C)
{
    __shared__ float xs[DEPTH][TILE + 4], ws[DEPTH][TILE + 4];
    const int tid = threadIdx.x, m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE, ty = tid / 16, tx = tid % 16;
    float sum[4][4] = {};
    for (int c0 = 0; c0 < C; c0 += DEPTH) {
        for (int i = tid; i < TILE * DEPTH; i += 256) {
            const int r = i / DEPTH, c = c0 + i % DEPTH;
            xs[i % DEPTH][r] = m0 + r < M && c < C ? x[int64_t(m0 + r) * C + c] : 0.0f;
            ws[i % DEPTH][r] = n0 + r < OC && c < C ? weight[int64_t(n0 + r) * C + c] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] += xs[k][ty * 4 + i] * ws[k][tx * 4 + j];
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            const int row = m0 + ty * 4 + i, column = n0 + tx * 4 + j;
            if (row < M && column < OC) out[int64_t(row) * OC + column] = sum[i][j];
        }
    }
}
