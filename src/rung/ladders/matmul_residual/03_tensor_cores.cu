/*---
idea   = "The same epilogue after the mma.sync pipeline."
expect = "The residual's reads come at the end of a tile, where other blocks of the multiprocessor still multiply: close to the plain product's time."
found  = "On an H200 368 -> 58.7 us (6.26x) at b4t64 and 1.27 ms -> 131 us (9.71x) at b8t1024 in bf16, 0.17x and 0.47x torch's speed. Roughly as expected at b8t1024: as many multiplications of another shape take the plain pipeline 117 us (matmul/14, another run). At b4t64 presumably 12 tiles leave most multiprocessors idle."
provenance = "ours; on rung 14 of matmul"
from   = "matmul_gelu/3"
inherit = ["needs", "tune", "define", "bind", "launch"]
dtypes = ["bf16", "f16", "tf32"]
[[launch]]
kernel = "matmul_residual"
[model]
serves = { fused = 1 }
---*/
#include "mma_tile.cuh"

using namespace mma_tile;

struct AddResidual
{
    const Real* residual;
    int OC;

    template <class Paired>
    __device__ __forceinline__ float2 operator()(float2 v, int row, int col, bool second, Paired) const
    {
        const float2 r = load_two<Paired::value>(residual + size_t(row) * OC + col, second);
        return make_float2(v.x + r.x, v.y + r.y);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_residual(const Real* x, const Real* weight, const Real* bias, const Real* residual, Real* out, int M, int OC, int C)
{
    extern __shared__ __align__(128) char smem[];
    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
    const Place place;

    Sums sum = {};
    multiply_tiles(sum, smem, TileCopy<BM>(x, m0, M, C), TileCopy<BN>(weight, n0, OC, C), place, 0, ceil_div(C, BK), C);
    store_tile(sum, place, m0, n0, M, OC, bias, out, AddResidual{residual, OC});
}
