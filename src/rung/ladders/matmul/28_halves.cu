/*---
idea   = "The three products from halves: every row of x and of weight is multiplied by a power of two and written once as hi + lo, and lo hi + hi lo + hi hi have its float32 accuracy to 22 bits. Depths beyond 1536 are summed in parts outside the tensor cores."
expect = "Halves multiply twice as fast as tf32: three times rung 25's 63 us at 8192x768x3072, and 12 us for writing 35 million numbers in two halves each: 205 us, where cuBLAS takes 776 in float32 and rung 27 should take 340."
found  = "203 us at 8192x768x3072 on an H200, as expected: cublasLt 791 in float32, rung 27 317, rung 18 561. Clusters, a lead and narrower tiles change 2 %."
from   = "matmul/27"
dtypes = ["f32"]
arch_specific = true
needs  = ["sm >= 90 and sm < 100", "LEAD < STAGES", "C % 8 == 0"]
[tune]
WIDE    = [256, 192, 128]
STAGES  = [4, 3]
LEAD    = [2, 0]
CLUSTER = [2, 1]
GROUP   = [8, 4, 16, 1000]
[let]
columns = "WIDE if C <= 1536 else 128"  # of a tile: parts need two sums in registers
[define]
BN       = "columns"
RAGGED   = "min(1, OC % 4)"
IN_PARTS = "int(C > 1536)"
[bind]
M = "B * T"
[buffers]
x_hi        = { shape = ["B * T", "C"], dtype = "f16" }
x_lo        = { shape = ["B * T", "C"], dtype = "f16" }
weight_hi   = { shape = ["OC", "C"], dtype = "f16" }
weight_lo   = { shape = ["OC", "C"], dtype = "f16" }
x_unit      = { shape = ["B * T"], dtype = "f32" }
weight_unit = { shape = ["OC"], dtype = "f32" }
[maps.x_hi_map]
operand = "x_hi"
box     = [128, 64]
swizzle = 128
[maps.x_lo_map]
operand = "x_lo"
box     = [128, 64]
swizzle = 128
[maps.weight_hi_map]
operand = "weight_hi"
box     = ["columns // CLUSTER", 64]
swizzle = 128
[maps.weight_lo_map]
operand = "weight_lo"
box     = ["columns // CLUSTER", 64]
swizzle = 128
[maps.out_map]
operand = "out"
dims    = ["B * T", "OC"]
box     = [64, 32]
swizzle = 128
when    = "OC % 4 == 0"
[[launch]]
kernel = "split"
grid   = "ceil_div(B * T + OC, 8)"
block  = 256
[[launch]]
kernel = "matmul"
grid   = "CLUSTER * min(max(1, sms // CLUSTER), ceil_div(B * T, 128 * CLUSTER) * ceil_div(OC, columns))"
block  = 384
cluster = "CLUSTER"
shared = "STAGES * (128 + columns) * 128 + 4 * 8192 + 1024"
---*/
#define MULTIPLY_HALVES
#include "halves.cuh"
#include "hopper_tile.cuh"

using namespace hopper_tile;

constexpr int STEPS_OF_A_PART = 1536 / DEEP;  // tensor cores truncate when they add

// One warp per row.
extern "C" __global__ void __launch_bounds__(256)
    split(const float* x, const float* weight, __half* x_hi, __half* x_lo, __half* weight_hi, __half* weight_lo, float* x_unit,
          float* weight_unit, int M, int OC, int C)
{
    const int either = blockIdx.x * 8 + warp_id();
    if (either >= M + OC) return;
    const bool of_x = either < M;
    const size_t row = of_x ? either : either - M;
    const float* from = (of_x ? x : weight) + row * C;
    float largest = 0.0f;
    for (int c = lane_id() * 4; c < C; c += WARP_SIZE * 4)
        largest = fmaxf(largest, largest_of(*reinterpret_cast<const float4*>(from + c)));
    const Unit unit(warp_max(largest));
    for (int c = lane_id() * 4; c < C; c += WARP_SIZE * 4) {
        uint2 hi, lo;
        split4(*reinterpret_cast<const float4*>(from + c), unit.factor, hi, lo);
        *reinterpret_cast<uint2*>((of_x ? x_hi : weight_hi) + row * C + c) = hi;
        *reinterpret_cast<uint2*>((of_x ? x_lo : weight_lo) + row * C + c) = lo;
    }
    if (lane_id() == 0) (of_x ? x_unit : weight_unit)[row] = unit.unit;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul(const __grid_constant__ TensorMap x_hi_map, const __grid_constant__ TensorMap x_lo_map,
           const __grid_constant__ TensorMap weight_hi_map, const __grid_constant__ TensorMap weight_lo_map,
           const __grid_constant__ TensorMap out_map, const float* x_unit, const float* weight_unit, const float* bias,
           float* out, int M, int OC, int C)
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
                        tensor_load(ring.a(), pass == 0 ? &x_lo_map : &x_hi_map, ring.arrival(), step * DEEP, origin.x);
                        tensor_load_shared<CLUSTER>(ring.b(), pass == 1 ? &weight_lo_map : &weight_hi_map, ring.arrival(), rank,
                                                    BN, step * DEEP, origin.y);
                    }
            }
    } else {
        warpgroup_take_registers<TAKEN>();
        const int group = threadIdx.x / WARPGROUP, of_a_part = IN_PARTS ? STEPS_OF_A_PART : 3 * steps;
        Lead lead(3 * steps);
        Sums sums;
        for (int tile = blockIdx.x / CLUSTER; tile < tiles.count(); tile += clusters) {
            const int2 origin = tiles.origin(tile, rank);
            const Bias<BN, !RAGGED> added(bias, origin.y, OC);
#if IN_PARTS
            Sums total = {};
#endif
            for (int step = 0; step < 3 * steps; step += of_a_part) {
                multiply_tile(sums, ring, min(of_a_part, 3 * steps - step),
                              [&](uint64_t* empty) { lead.step(), ReleaseEverywhere<CLUSTER>()(empty); });
#if IN_PARTS
#pragma unroll
                for (int i = 0; i < BN / 2; i++) total[i] += sums[i];
#endif
            }
#if !IN_PARTS
            Sums& total = sums;
#endif
            const auto finish = [&](float2 v, int j, int row, int column) {
                const float unit = x_unit[min(row, M - 1)];
                const float2 units = pair_at(weight_unit, 0, column, 1, OC);
                return added.add(make_float2(v.x * unit * units.x, v.y * unit * units.y), j);
            };
#if RAGGED
            store_ragged<BN>(total, ring.boxes(group), origin.x, origin.y, M, OC, out, finish);
#else
            store_boxes<BN>(total, ring.boxes(group), &out_map, origin.x, origin.y, OC, finish);
#endif
        }
        tensor_store_wait<0>();
    }
    cluster_sync();  // a block's shared memory must stay valid until the other blocks' copies and arrivals have reached it
}
