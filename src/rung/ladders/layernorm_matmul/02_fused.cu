/*---
idea   = "One kernel: each block first computes mean and deviation of its own rows, then normalises x while copying it into shared memory."
expect = "No normalised copy and one launch, at the cost of statistics that every block in a row of blocks repeats, and of four operations per element copied."
found  = "On an H200 slower than two kernels: 90.9 -> 136 us (0.67x) at b4t64 and 706 -> 911 us (0.77x) at b8t1024 in f32; 0.38x and 0.75x torch's speed. Presumably 18 blocks side by side, each repeating the statistics and the normalising, cost more than the copy and the launch saved (02.md)."
provenance = "ours; the fusion is one of the plans of the milestone 2 report; on rung 08 of matmul"
dtypes = ["f32", "f16", "bf16"]
needs  = ["gelu == 0", "BM % 64 == 0 and BN % 32 == 0", "BK % (16 // sizeof_real) == 0", "(BM * BK * sizeof_real // 16) % ((BM // 8) * (BN // 8)) == 0", "(BN * BK * sizeof_real // 16) % ((BM // 8) * (BN // 8)) == 0"]
[tune]
BM = [128, 64]
BN = [128, 64]
BK = [16, 8]
[bind]
M = "B * T"
[[launch]]
kernel = "layernorm_matmul"
grid   = ["ceil_div(OC, BN)", "ceil_div(B * T, BM)"]
block  = "(BM // 8) * (BN // 8)"
[model]
serves = { fused = 2 }
---*/
#include "fma_tile.cuh"

using namespace fma_tile;

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    layernorm_matmul(const Real* x, const Real* ln_weight, const Real* ln_bias, const Real* weight, const Real* bias, Real* out,
                     int M, int OC, int C, float eps)
{
    __shared__ float means[BM], rstds[BM];
    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
    const int lane = threadIdx.x % WARP_SIZE;

    for (int r = threadIdx.x / WARP_SIZE; r < BM; r += WARPS) {
        if (m0 + r >= M) break;
        const Real* row = x + size_t(m0 + r) * C;
        float sum = 0.0f, square = 0.0f;
        for (int c = lane; c < C; c += WARP_SIZE) sum += to_float(row[c]);
        const float mean = warp_sum(sum) / C;
        for (int c = lane; c < C; c += WARP_SIZE) {
            const float centred = to_float(row[c]) - mean;
            square += centred * centred;
        }
        const float variance = warp_sum(square) / C;
        if (lane == 0) {
            means[r] = mean;
            rstds[r] = rsqrtf(variance + eps);
        }
    }
    __syncthreads();

    Sums sum = {};
    multiply_tiles(sum, x, weight, m0, n0, M, OC, C, [&](float value, int r, int c) {
        if (m0 + r >= M || c >= C) return 0.0f;
        return (value - means[r]) * rstds[r] * to_float(ln_weight[c]) + to_float(ln_bias[c]);
    });
    store_tile(sum, m0, n0, M, OC, bias, out, Unchanged{});
}
