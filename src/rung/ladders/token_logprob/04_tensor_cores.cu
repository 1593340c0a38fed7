/*---
idea   = "The same reduction after the mma.sync pipeline of matmul/14."
expect = "Tensor cores multiply some ten times faster than the FMA units, so that the exponentials, one per logit, become significant: about a fifth of the product's time at C 768."
found  = "4.3 times rung 3 for 64 tokens in bf16 on an H200 (5.1 to 1.2 ms); 8 x 1024 tokens in 2.8 ms, 29 % of the tensor cores' rate."
from   = "token_logprob/3"
inherit = ["tune", "bind", "buffers", "launch"]
dtypes = ["bf16", "f16", "tf32"]
needs  = [
  "sm >= 80",
  "BM % WM == 0 and BN % WN == 0",
  "BK * sizeof_real == 64 or BK * sizeof_real == 128",
  "BM // WM * (BN // WN) * 32 // (BK * sizeof_real // 16) % 8 == 0",  # the swizzle repeats every eight rows
  "BM // WM * (BN // WN) <= 16",
  "(BM * BK * sizeof_real // 16) % (BM // WM * (BN // WN) * 32) == 0",
  "(BN * BK * sizeof_real // 16) % (BM // WM * (BN // WN) * 32) == 0",
  # stages and, in each warp, a row's statistics
  "STAGES * (BM + BN) * BK * sizeof_real + BM * (BN // WN) * 16 <= 1024 * (99 if sm == 86 or sm >= 88 and sm < 90 or sm >= 120 else 163 if sm < 90 else 227)",
]
[tune]
BN = [128, 64, 256]
BK = [32, 64]
WM = [64, 32]
WN = [64, 32]
STAGES = [3, 4]
[define]
ALIGNED = "int(C * sizeof_real % 16 == 0)"
[[launch]]
kernel = "target_logits"
[[launch]]
kernel = "token_logprob"
block  = "BM // WM * (BN // WN) * 32"
shared = "STAGES * (BM + BN) * BK * sizeof_real"
[[launch]]
kernel = "merge_slices"
[model]
serves = { score = 3 }
---*/
#include "merge.cuh"
#include "mma_tile.cuh"

using namespace mma_tile;

extern "C" __global__ void __launch_bounds__(THREADS)
    token_logprob(const Real* x, const Real* weight, const int* targets, const float* own, float4* parts, int M, int C, int V)
{
    extern __shared__ __align__(128) char smem[];
    __shared__ Statistics of_warp[WARPS_N][BM];
    const int m0 = blockIdx.x * BM;
    const int tiles = ceil_div(V, BN), per_slice = ceil_div(tiles, int(gridDim.y));
    const int last = min(tiles, int(blockIdx.y + 1) * per_slice);
    const Place place;
    const TileCopy<BM> x_copy(x, m0, M, C);

    Statistics mine[WM / 8];  // of the lane's rows: every eighth
    for (int tile = blockIdx.y * per_slice; tile < last; tile++) {
        Sums sum = {};
        multiply_tiles(sum, smem, x_copy, TileCopy<BN>(weight, tile * BN, V, C), place, 0, ceil_div(C, BK), C);
        __syncthreads();  // the last stages have been read before the next tile's copies arrive there
#pragma unroll
        for (int i = 0; i < WM / 8; i++) {
            const int token = min(m0 + place.warp_m + i * 8 + place.lane / 4, M - 1);
            const int target = targets[token];
            const float limit = own[token];
#pragma unroll
            for (int j = 0; j < WN / 8; j++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int v = tile * BN + place.warp_n + j * 8 + place.lane % 4 * 2 + h;
                    const float logit = sum[i / 2][j][i % 2 * 2 + h];
                    if (v < V) mine[i].add(logit, logit > limit && v != target);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < WM / 8; i++) {
        const Statistics all = merged(mine[i], 4);
        if (place.lane % 4 == 0) of_warp[place.warp_n / WN][place.warp_m + i * 8 + place.lane / 4] = all;
    }
    __syncthreads();
    // perhaps never several turns: mostly a thread for each row
    for (int row = threadIdx.x; row < BM && m0 + row < M; row += THREADS) {
        Statistics all = of_warp[0][row];
#pragma unroll
        for (int w = 1; w < WARPS_N; w++) all.merge(of_warp[w][row]);
        store_part(parts, all, blockIdx.y, m0 + row, M);
    }
}

extern "C" __global__ void target_logits(const Real* x, const Real* weight, const int* targets, float* own, int M, int C)
{
    find_target_logits(x, weight, targets, own, M, C);
}

extern "C" __global__ void merge_slices(const float4* parts, const float* own, float* logprob, float* entropy, int* rank, int M,
                                        int slices)
{
    merge_all_slices(parts, own, logprob, entropy, rank, M, slices);
}
