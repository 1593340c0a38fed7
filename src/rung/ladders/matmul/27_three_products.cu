/*---
idea   = "Float32 accuracy from wgmma: the tf32 rounding errors of x and weight are computed first as separate matrices, and rung 25's pipeline goes three times through the depth: low parts times full numbers, full times low, full times full."
expect = "Tensor cores read the upper 19 bits of a float, so that the matrices themselves serve as their high parts, and small products come first, so that less of them is lost to rounding. Three times tf32's 105 us, and 20 us for 70 MB of low parts: 340 us where cuBLAS takes 776 in float32."
found  = "Right on an H200 at four cases up to a depth of 1600. At 6400 the error is 1.6e-5, over the bound of 1e-5: tensor cores probably truncate when they add, and one sum over the whole depth accumulates that error. So deeper calls are refused. 317 us at 8192x768x3072, cublasLt 791."
from   = "matmul/25"
dtypes = ["f32"]
arch_specific = true
needs  = ["sm >= 90 and sm < 100", "LEAD < STAGES", "C % 4 == 0", "C <= 1600"]  # deeper sums lose too much
[tune]
BN      = [256, 192, 128]
STAGES  = [4, 3]
LEAD    = [2, 0]
CLUSTER = [2, 1]
GROUP   = [8, 4, 16, 1000]
[define]
RAGGED = "min(1, OC % 4)"
[bind]
M = "B * T"
[buffers]
x_low      = { shape = ["B * T", "C"], dtype = "f32" }
weight_low = { shape = ["OC", "C"], dtype = "f32" }
[maps.x_map]
operand = "x"
dims    = ["B * T", "C"]
box     = [128, 32]
swizzle = 128
[maps.x_low_map]
operand = "x_low"
box     = [128, 32]
swizzle = 128
[maps.weight_map]
operand = "weight"
box     = ["BN // CLUSTER", 32]
swizzle = 128
[maps.weight_low_map]
operand = "weight_low"
box     = ["BN // CLUSTER", 32]
swizzle = 128
[maps.out_map]
operand = "out"
dims    = ["B * T", "OC"]
box     = [64, 32]
swizzle = 128
when    = "OC % 4 == 0"
[[launch]]
kernel = "low_parts"
grid   = "min(8 * sms, ceil_div((B * T + OC) * C, 1024))"
block  = 256
[[launch]]
kernel = "matmul"
grid   = "CLUSTER * min(max(1, sms // CLUSTER), ceil_div(B * T, 128 * CLUSTER) * ceil_div(OC, BN))"
block  = 384
cluster = "CLUSTER"
shared = "STAGES * (128 + BN) * 128 + 4 * 8192 + 1024"
---*/
#include "hopper_tile.cuh"

using namespace hopper_tile;

// The remainder of a number after the part that tensor cores use; zero for infinity and NaN.
__device__ __forceinline__ float low_part(float x)
{
    const float high = __uint_as_float(__float_as_uint(x) & 0xffffe000u);
    return isfinite(x) ? x - high : 0.0f;
}

extern "C" __global__ void __launch_bounds__(256)
    low_parts(const Real* x, const Real* weight, float* x_low, float* weight_low, int M, int OC, int C)
{
    const size_t of_x = size_t(M) * C / VEC, all = of_x + size_t(OC) * C / VEC;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += size_t(gridDim.x) * blockDim.x) {
        const bool first = i < of_x;
        const size_t at = (first ? i : i - of_x) * VEC;
        auto numbers = load_vec((first ? x : weight) + at);
        for (int j = 0; j < VEC; j++) numbers[j] = low_part(numbers[j]);
        store_vec((first ? x_low : weight_low) + at, numbers);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap x_low_map,
           const __grid_constant__ TensorMap weight_map, const __grid_constant__ TensorMap weight_low_map,
           const __grid_constant__ TensorMap out_map, const Real* bias, Real* out, int M, int OC, int C)
{
    extern __shared__ char shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    Ring ring(shared, full, empty);
    const int rank = cluster_rank(), clusters = gridDim.x / CLUSTER, steps = ceil_div(C, DEEP);
    const ClusterTiles tiles{ceil_div(M, BM * CLUSTER), ceil_div(OC, BN)};
    if (threadIdx.x == 0) ring.set_up(COMPUTING / WARP_SIZE * CLUSTER);
    cluster_sync();

    if (threadIdx.x >= COMPUTING) {
        warpgroup_give_registers<GIVEN>();
        if (threadIdx.x == COMPUTING)
            for (int tile = blockIdx.x / CLUSTER; tile < tiles.count(); tile += clusters) {
                const int2 origin = tiles.origin(tile, rank);
                for (int pass = 0; pass < 3; pass++)
                    for (int step = 0; step < steps; step++, ring.advance()) {
                        ring.open();
                        tensor_load(ring.a(), pass == 0 ? &x_low_map : &x_map, ring.arrival(), step * DEEP, origin.x);
                        tensor_load_shared<CLUSTER>(ring.b(), pass == 1 ? &weight_low_map : &weight_map, ring.arrival(), rank, BN,
                                                    step * DEEP, origin.y);
                    }
            }
    } else {
        warpgroup_take_registers<TAKEN>();
        const int group = threadIdx.x / WARPGROUP;
        Lead lead(3 * steps);
        Sums sums;
        for (int tile = blockIdx.x / CLUSTER; tile < tiles.count(); tile += clusters) {
            const int2 origin = tiles.origin(tile, rank);
            const Bias<BN, !RAGGED> added(bias, origin.y, OC);
            const auto finish = [&](float2 v, int j, int, int) { return added.add(v, j); };
            multiply_tile(sums, ring, 3 * steps, [&](uint64_t* empty) { lead.step(), ReleaseEverywhere<CLUSTER>()(empty); });
#if RAGGED
            store_ragged<BN>(sums, ring.boxes(group), origin.x, origin.y, M, OC, out, finish);
#else
            store_boxes<BN>(sums, ring.boxes(group), &out_map, origin.x, origin.y, OC, finish);
#endif
        }
        tensor_store_wait<0>();
    }
    cluster_sync();  // a block's shared memory must stay valid until the other blocks' copies and arrivals have reached it
}
