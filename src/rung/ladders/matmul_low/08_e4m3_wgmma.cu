/*---
idea   = "e4m3 on Hopper: the structure of matmul's rung 25 (copy engine, producer and consumers, persistent blocks, clusters) with wgmma of 32 eight-bit numbers per step; the scales of row and column are applied at the store."
expect = "A tile has half the bytes, and the tensor cores' rate is twice that of bf16: at 4096 1.7x matmul/25, at a depth of 768 less, where the output's stores are half of the time. Sums of e4m3 keep fewer bits inside the tensor cores than those of bf16."
found  = "102 us at 4096 on an H200, 1.05 times torch's scaled_mm (107) and 1.8 times its bf16 product (180); for 8192 rows of gpt2 46.3 against 47.4 and 61.4 us. For 256 rows scaled_mm is faster, 6.6 against 10.6 us."
provenance = "The lecture's list of low-precision formats: FP8, e4m3, with Hopper's wgmma."
from   = "matmul_low/6"
rewrite = "Everything except the number format changes from rung 6: the structure is that of matmul/25, whose ladder has the steps."
dtypes = ["bf16"]
products = "e4m3"
arch_specific = true
needs  = ["sm >= 90 and sm < 100", "LEAD < STAGES", "C % 16 == 0", "STAGES * (128 + BN) * 128 + BOXES * 16384 <= 230000"]
align  = 16
[tune]
BN      = [256, 128, 192, 64]
STAGES  = [4, 3]
CLUSTER = [2, 1]
LEAD    = [0, 2]
GROUP   = [8, 4, 1000]
BOXES   = [2, 4]
[define]
RAGGED  = "min(1, OC * sizeof_real % 16)"
MULTIPLY_E4M3 = 1
[maps.x_map]
operand = "x_f8"
box     = [128, 128]
swizzle = 128
[maps.w_map]
operand = "w_f8"
box     = ["BN // CLUSTER", 128]
swizzle = 128
[maps.out_map]
operand = "out"
box     = [64, "128 // sizeof_real"]
swizzle = 128
when    = "OC * sizeof_real % 16 == 0"
[[launch]]
kernel = "scaled_product"
grid   = "CLUSTER * min(max(1, sms // CLUSTER), ceil_div(M, 128 * CLUSTER) * ceil_div(OC, BN))"
block  = 384
cluster = "CLUSTER"
shared = "STAGES * (128 + BN) * 128 + BOXES * 16384 + 1024"
---*/
#include "hopper_product.cuh"

using namespace hopper_tile;

// Sums times the scales of their row and column, stored by the copy engine, or by the warps where rows are not aligned.
struct Scaled
{
    char* boxes;
    const TensorMap* out_map;
    const float *x_scale, *w_scale;
    Real* out;
    int M, OC;
    float rows[2];  // scales of this thread's two rows of the tile

    __device__ __forceinline__ void before(int2 origin)
    {
#pragma unroll
        for (int half = 0; half < 2; half++)
            rows[half] = x_scale[min(origin.x + int(threadIdx.x) / WARPGROUP * 64 + warpgroup_row(half), M - 1)];
    }
    __device__ __forceinline__ void after(const Sums& sums, const Bias<BN, !RAGGED>&, int2 origin) const
    {
        const auto scaled = [&](float2 v, int, int row, int column) {
            const float scale = row & 8 ? rows[1] : rows[0];
            return make_float2(v.x * scale * w_scale[min(column, OC - 1)], v.y * scale * w_scale[min(column + 1, OC - 1)]);
        };
#if RAGGED
        store_ragged<BN>(sums, boxes, origin.x, origin.y, M, OC, out, scaled);
#else
        store_boxes<BN>(sums, boxes, out_map, origin.x, origin.y, OC, scaled);
#endif
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    scaled_product(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
                   const __grid_constant__ TensorMap out_map, const float* x_scale, const float* w_scale, Real* out, int M,
                   int OC, int C)
{
    extern __shared__ char shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    Ring ring(shared, full, empty);
    Scaled epilogue{ring.boxes(threadIdx.x / WARPGROUP), &out_map, x_scale, w_scale, out, M, OC, {}};
    hopper_tile::product(x_map, w_map, ring, nullptr, M, OC, C, epilogue);
}
