/*---
idea   = "matmul's mma.sync pipeline over the 2 OC columns of both; a lane's pairs of neighbouring sums are a gate and its factor."
expect = "The time of the product alone, since half as much is stored: two thirds of cuBLAS's rate, and torch's second kernel saved."
dtypes = ["bf16", "f16"]
needs  = [
  "sm >= 80",
  "BM % WM == 0 and BN % WN == 0",
  "BK * sizeof_real == 64 or BK * sizeof_real == 128",
  "BM // WM * (BN // WN) * 32 // (BK * sizeof_real // 16) % 8 == 0",  # the swizzle repeats every eight rows
  "BM // WM * (BN // WN) <= 16",
  "(BM * BK * sizeof_real // 16) % (BM // WM * (BN // WN) * 32) == 0",
  "(BN * BK * sizeof_real // 16) % (BM // WM * (BN // WN) * 32) == 0",
  "STAGES * (BM + BN) * BK * sizeof_real <= 232448",
]
[model]
serves = { prompt = "2 if rows >= 4096 else 0" }
fits = "B * T >= 16"  # rows of a tile
[tune]
BM = [128, 64, 256]
BN = [128, 64, 256]
BK = [32, 64]
WM = [64, 32]
WN = [64, 32]
STAGES = [3, 4]
[define]
ALIGNED = "int(C * sizeof_real % 16 == 0)"
[bind]
M = "B * T"
[[launch]]
kernel = "matmul_swiglu"
grid   = ["ceil_div(2 * OC, BN)", "ceil_div(B * T, BM)"]
block  = "BM // WM * (BN // WN) * 32"
shared = "STAGES * (BM + BN) * BK * sizeof_real"
---*/
#include "mma_tile.cuh"

using namespace mma_tile;

__device__ __forceinline__ float swiglu(float2 v) { return __fdividef(v.x, 1.0f + __expf(-v.x)) * v.y; }

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_swiglu(const Real* x, const Real* weight, Real* out, int M, int OC, int C)
{
    extern __shared__ __align__(128) char smem[];
    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
    const Place place;

    Sums sum = {};
    multiply_tiles(sum, smem, TileCopy<BM>(x, m0, M, C), TileCopy<BN>(weight, n0, 2 * OC, C), place, 0, ceil_div(C, BK), C);
    for_each_pair(sum, place, [&](int row, int col, float2 v) {
        const int m = m0 + row, oc = (n0 + col) / 2;
        if (m < M && oc < OC) out[size_t(m) * OC + oc] = from_float<Real>(swiglu(v));
    });
}
