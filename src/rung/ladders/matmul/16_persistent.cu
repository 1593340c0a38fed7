/*---
idea   = "As many blocks as fit, each working through a list of tiles: the copies of the next tile start while the last products and the stores of this one run, and tiles are visited in groups of GROUP rows so that their operands stay in the L2 cache."
expect = "The pipeline does not drain between tiles: with C = 768 a tile is only 24 steps deep, so that filling it and storing took a fair part of rung 14. The order matters once x or weight exceed the L2 (8192 and the vocabulary)."
found  = "1.19x over rung 14 at 8192 x 768 x 3072 in bf16 on an H200: 117 us -> 98.1 us, 50 % of the measured rate, 0.61x cublasLt's speed; 1.09x over the vocabulary. In tf32 a loss, 218 -> 235 us (0.93x); for 256 rows, with 24 tiles of 128 x 256, 0.92x, in tf32 0.55x."
provenance = "ours; persistent kernels and grouped tile order are common practice"
from   = "matmul/14"
dtypes = ["bf16", "f16", "tf32"]
needs  = [
  "sm >= 80",
  "BM % WM == 0 and BN % WN == 0",
  "BK * sizeof_real == 64 or BK * sizeof_real == 128",
  "BM // WM * (BN // WN) * 32 // (BK * sizeof_real // 16) % 8 == 0",  # the swizzle repeats every eight rows
  "BM // WM * (BN // WN) <= 16",
  "(BM * BK * sizeof_real // 16) % (BM // WM * (BN // WN) * 32) == 0",
  "(BN * BK * sizeof_real // 16) % (BM // WM * (BN // WN) * 32) == 0",
  "STAGES * (BM + BN) * BK * sizeof_real <= 232448 // BLOCKS",
]
[tune]
BM = [128, 256, 64]
BN = [256, 128, 64]
BK = [32, 64]
WM = [64, 32]
WN = [64, 32]
STAGES = [4, 3]
GROUP  = [8, 4, 16]
BLOCKS = [1, 2]
[define]
ALIGNED = "int(C * sizeof_real % 16 == 0)"
[bind]
M = "B * T"
[[launch]]
kernel = "matmul"
grid   = "min(BLOCKS * sms, ceil_div(B * T, BM) * ceil_div(OC, BN))"
block  = "BM // WM * (BN // WN) * 32"
shared = "STAGES * (BM + BN) * BK * sizeof_real"
---*/
#include "mma_tile.cuh"

using namespace mma_tile;

// Tile number `index` in an order that goes down GROUP tiles before it moves to the right.
__device__ __forceinline__ void tile_origin(int index, int M, int OC, int& m0, int& n0)
{
    const int tiles_m = ceil_div(M, BM), tiles_n = ceil_div(OC, BN);
    const int group = index / (GROUP * tiles_n), within = index % (GROUP * tiles_n);
    const int height = min(tiles_m - group * GROUP, GROUP);
    m0 = (group * GROUP + within % height) * BM;
    n0 = within / height * BN;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul(const Real* x, const Real* weight, const Real* bias, Real* out, int M, int OC, int C)
{
    extern __shared__ __align__(128) char smem[];

    const Place place;
    const int depth = ceil_div(C, BK);
    const int outputs = ceil_div(M, BM) * ceil_div(OC, BN);
    const int steps = ceil_div(outputs - int(blockIdx.x), int(gridDim.x)) * depth;  // of this block, over all its tiles

    // Copies run ahead of products and cross into the next tile on their own.
    int next_output = blockIdx.x, next_depth = 0, next_stage = 0;
    int m0, n0;
    tile_origin(next_output, M, OC, m0, n0);
    TileCopy<BM> x_copy(x, m0, M, C);
    TileCopy<BN> w_copy(weight, n0, OC, C);
    auto start_next = [&] {
        if (next_output < outputs) {
            char* stage = smem + next_stage * STAGE_BYTES;
            x_copy.start(stage, next_depth * BK, C);
            w_copy.start(stage + BM * ROW_BYTES, next_depth * BK, C);
            next_stage = next_stage + 1 == STAGES ? 0 : next_stage + 1;
            if (++next_depth == depth) {
                next_depth = 0;
                next_output += gridDim.x;
                if (next_output < outputs) {
                    int m, n;
                    tile_origin(next_output, M, OC, m, n);
                    x_copy.aim(x, m, M, C);
                    w_copy.aim(weight, n, OC, C);
                }
            }
        }
        cp_async_commit();
    };

    for (int i = 0; i < STAGES - 1; i++) start_next();
    cp_async_wait<STAGES - 2>();
    __syncthreads();

    Sums sum = {};
    Fragments fragments[2];
    fragments[0].load(smem, place, 0);
    int output = blockIdx.x, at_depth = 0, stage = 0;
    for (int i = 0; i < steps; i++) {
        const int following = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step == STEPS - 1) {
                cp_async_wait<STAGES - 2>();
                __syncthreads();
            }
            const int from = step == STEPS - 1 ? following : stage;
            fragments[(step + 1) % 2].load(smem + from * STAGE_BYTES, place, (step + 1) % STEPS);
            if (step == 0) start_next();
            multiply(sum, fragments[step % 2]);
        }
        stage = following;

        if (++at_depth == depth) {
            tile_origin(output, M, OC, m0, n0);
            store_tile(sum, place, m0, n0, M, OC, bias, out, Unchanged{});
#pragma unroll
            for (int a = 0; a < WM / 16; a++)
#pragma unroll
                for (int b = 0; b < WN / 8; b++)
#pragma unroll
                    for (int c = 0; c < 4; c++) sum[a][b][c] = 0.0f;
            at_depth = 0;
            output += gridDim.x;
        }
    }
}
