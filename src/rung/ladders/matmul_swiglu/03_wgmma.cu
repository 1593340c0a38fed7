/*---
idea   = "matmul/25's product by wgmma, with weights that clusters share: four lanes exchange the outputs of their pairs, so that each stores eight bytes in 16 bits."
expect = "As matmul_gelu/6: 85 % of the product's measured rate; one warpgroup's exponentials overlap the other's products."
rewrite = "The product of matmul/25 instead of the pipeline for mma.sync."
dtypes = ["bf16", "f16"]
arch_specific = true
needs  = ["sm >= 90 and sm < 100", "LEAD < STAGES", "C * sizeof_real % 16 == 0", "STAGES * (128 + BN) * 128 <= 230000"]
[tune]
BN      = [256, 192, 128]
STAGES  = [4, 3]
LEAD    = [3, 0, 2, 1]
CLUSTER = [2, 1, 4]
GROUP   = [8, 4, 16, 1000]
[define]
RAGGED = "0"  # 2 OC columns are even, and sums are stored one by one
[bind]
M = "B * T"
[maps.x_map]
operand = "x"
dims    = ["B * T", "C"]
box     = [128, "128 // sizeof_real"]
swizzle = 128
[maps.weight_map]
operand = "weight"
box     = ["BN // CLUSTER", "128 // sizeof_real"]
swizzle = 128
[[launch]]
kernel = "matmul_swiglu"
grid   = "CLUSTER * min(max(1, sms // CLUSTER), ceil_div(B * T, 128 * CLUSTER) * ceil_div(2 * OC, BN))"
block  = 384
cluster = "CLUSTER"
shared = "STAGES * (128 + BN) * 128 + 1024"
[model]
serves = { prompt = "1 if rows >= 4096 else 0" }
---*/
#include "hopper_product.cuh"

using namespace hopper_tile;

__device__ __forceinline__ float swiglu(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }

// A lane's pairs of sums in a row are 8 columns apart: outputs 4 j + lane % 4. Exchanged among four lanes, each has the four
// neighbouring outputs of every fourth j.
struct StoreGated
{
    Real* out;
    int M, columns;

    __device__ __forceinline__ void before(int2) const {}
    __device__ __forceinline__ void after(const Sums& sums, const Bias<BN, true>&, int2 origin) const
    {
        const int first = origin.x + threadIdx.x / WARPGROUP * 64, mine = lane_id() % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first + warpgroup_row(half);
#pragma unroll
            for (int j0 = 0; j0 < BN / 8; j0 += 4) {
                float v[4];
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = swiglu(sums[(j0 + i) * 4 + half * 2], sums[(j0 + i) * 4 + half * 2 + 1]);
#pragma unroll
                for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
                    for (int p = 0; p < 4; p++) {
                        if (p & bit) continue;
                        const bool upper = mine & bit;
                        const float got = __shfl_xor_sync(ALL_LANES, upper ? v[p] : v[p | bit], bit);
                        v[p] = upper ? got : v[p];
                        v[p | bit] = upper ? v[p | bit] : got;
                    }
                const int column = origin.y / 2 + (j0 + mine) * 4;
                if (row >= M || column >= columns) continue;
                Real* to = out + size_t(row) * columns + column;
                if (columns % 4 == 0) {
                    *reinterpret_cast<Vec<Real, 4>*>(to) = {from_float<Real>(v[0]), from_float<Real>(v[1]),
                                                            from_float<Real>(v[2]), from_float<Real>(v[3])};
                } else {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (column + i < columns) to[i] = from_float<Real>(v[i]);
                }
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_swiglu(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map, Real* out, int M, int OC,
                  int C)
{
    extern __shared__ char shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    Ring ring(shared, full, empty);
    StoreGated store{out, M, OC};
    product(x_map, weight_map, ring, nullptr, M, 2 * OC, C, store);
}
