/*---
idea   = "An order of tiles for L2: GROUP tiles down, then one to the right, so that the blocks work on a nearly square part of the output at any time. Unaligned rows, such as those of 50257 columns, are stored through shared memory too."
expect = "At 8192 the 66 clusters of one wave read 66 tiles of x for one column, 17 MB per depth of 1024, where a square of 8 by 8 reads 8 + 8: the L2 hit rate rises from two thirds to nine tenths, a gain of 5 %, but none at a depth of 768, where both matrices fit into L2. The odd-width vocabulary costs its stores, 26 MB: 30 us where the library takes 230."
found  = "63.4 us at 8192x768x3072 in bf16 on an H200 against cublasLt's 63.1, 1663 us against 1680 at 8192x8192x8192. Lead, cluster and tile order change less than the variation between runs; 192 columns per tile help at 8192x3072x768 (57.6 us, cublasLt 56.0). The vocabulary of 50257 for 256 rows: 56.3 us, cublasLt 218, Triton 48.5. tf32: 115.8 us against 109.5."
from   = "matmul/24"
inherit = ["arch_specific", "tune", "bind", "maps"]
dtypes = ["bf16", "f16", "tf32"]
needs  = ["sm >= 90 and sm < 100", "LEAD < STAGES", "C * sizeof_real % 16 == 0", "STAGES * (128 + BN) * 128 + BOXES * 16384 <= 230000"]
[tune]
LEAD    = [0, 2, 1, 3]
GROUP   = [8, 4, 16, 1000]
BOXES   = [2, 4]
[define]
RAGGED = "min(1, OC * sizeof_real % 16)"
[maps.out_map]
operand = "out"
dims    = ["B * T", "OC"]
box     = [64, "128 // sizeof_real"]
swizzle = 128
when    = "OC * sizeof_real % 16 == 0"
[[launch]]
kernel = "matmul"
grid   = "CLUSTER * min(max(1, sms // CLUSTER), ceil_div(B * T, 128 * CLUSTER) * ceil_div(OC, BN))"
block  = 384
cluster = "CLUSTER"
shared = "STAGES * (128 + BN) * 128 + BOXES * 16384 + 1024"
---*/
#include "hopper_tile.cuh"

using namespace hopper_tile;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
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
                for (int step = 0; step < steps; step++, ring.advance()) {
                    ring.open();
                    tensor_load(ring.a(), &x_map, ring.arrival(), step * DEEP, origin.x);
                    tensor_load_shared<CLUSTER>(ring.b(), &weight_map, ring.arrival(), rank, BN, step * DEEP, origin.y);
                }
            }
    } else {
        warpgroup_take_registers<TAKEN>();
        const int group = threadIdx.x / WARPGROUP;
        Lead lead(steps);
        Sums sums;
        for (int tile = blockIdx.x / CLUSTER; tile < tiles.count(); tile += clusters) {
            const int2 origin = tiles.origin(tile, rank);
            const Bias<BN, !RAGGED> added(bias, origin.y, OC);
            const auto finish = [&](float2 v, int j, int, int) { return added.add(v, j); };
            multiply_tile(sums, ring, steps, [&](uint64_t* empty) { lead.step(), ReleaseEverywhere<CLUSTER>()(empty); });
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
