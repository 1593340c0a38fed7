/*---
idea   = "Split the depth: SPLITS blocks share a tile of the output, each summing a stretch of C into float partials, and a second kernel adds them in a fixed order."
expect = "Narrow outputs no longer leave most of the GPU idle: 256 x 768 has 48 tiles of 64 x 64 for 132 multiprocessors, and 192 work items with four splits. With many tiles it only adds the memory traffic of the partials."
found  = "For 256 rows 16.6 -> 15.0 us (1.10x) in bf16 on an H200, 1.11x in tf32, and 18.7 -> 13.2 us (1.42x) for one row: a gain, not the several times that idle multiprocessors suggested, and 0.40x cublasLt's speed. With many tiles it is slower, as expected: 117 -> 352 us (0.33x) at 8192 x 768 x 3072, 0.40x in tf32."
provenance = "ours; split-K is named among the plans of the milestone 2 report"
from   = "matmul/14"
inherit = ["needs", "tune", "define", "bind"]
dtypes = ["bf16", "f16", "tf32"]
[tune]
SPLITS = [4, 2, 8, 16]
BM = [64, 128]
BN = [64, 128]
WM = [32, 64]
WN = [32, 64]
STAGES = [4, 3]
[buffers.partial]
shape = ["SPLITS", "round_up(B * T, BM)", "round_up(OC, BN)"]
dtype = "f32"
[[launch]]
kernel = "matmul_split"
grid   = ["ceil_div(OC, BN)", "ceil_div(B * T, BM)", "SPLITS"]
block  = "BM // WM * (BN // WN) * 32"
shared = "STAGES * (BM + BN) * BK * sizeof_real"
[[launch]]
kernel = "add_partials"
grid   = ["ceil_div(OC, 256)", "min(B * T, max_grid_y)"]
block  = 256
---*/
#include "mma_tile.cuh"

using namespace mma_tile;

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_split(const Real* x, const Real* weight, float* partial, int M, int OC, int C)
{
    extern __shared__ __align__(128) char smem[];

    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN, split = blockIdx.z;
    const Place place;
    const int tiles = ceil_div(C, BK), share = ceil_div(tiles, SPLITS);
    const int first = min(split * share, tiles), last = min(first + share, tiles);

    Sums sum = {};
    multiply_tiles(sum, smem, TileCopy<BM>(x, m0, M, C), TileCopy<BN>(weight, n0, OC, C), place, first, last, C);

    // The partials are padded to whole tiles, so stores need no bounds check.
    const size_t rows = size_t(gridDim.y) * BM, cols = size_t(gridDim.x) * BN;
    float* mine = partial + (split * rows + m0) * cols + n0;
    for_each_pair(sum, place, [&](int row, int col, float2 v) { *reinterpret_cast<float2*>(mine + row * cols + col) = v; });
}

extern "C" __global__ void add_partials(const float* partial, const Real* bias, Real* out, int M, int OC)
{
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= OC) return;
    const size_t rows = ceil_div(M, BM) * size_t(BM), cols = ceil_div(OC, BN) * size_t(BN);
    const float b = bias ? to_float(bias[col]) : 0.0f;
    for (int row = blockIdx.y; row < M; row += gridDim.y) {
        float sum = b;
#pragma unroll
        for (int split = 0; split < SPLITS; split++) sum += partial[(split * rows + row) * cols + col];
        out[size_t(row) * OC + col] = from_float<Real>(sum);
    }
}
