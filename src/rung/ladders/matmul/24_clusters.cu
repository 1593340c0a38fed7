/*---
idea   = "Two blocks of a cluster take tiles one below the other and share their weights: each loads half of them, and the copy engine multicasts it to both blocks' shared memory."
expect = "48 KB from L2 per step become 32, so that 750 TFLOP/s need 5.9 TB/s instead of 8.8: 5 to 10 % where L2 is the limit (8192), little at a depth of 768."
found  = "Right on an H200 at the 7 cases in bf16 and the 8 in tf32 whose rows are multiples of 16 bytes. It was not timed alone there; in rung 25 a cluster of two changes 65.1 us to 64.5 us at 8192x768x3072 and 1667 us to 1660 us at 8192x8192x8192 in bf16: no more than the variation between runs."
from   = "matmul/23"
inherit = ["arch_specific", "needs", "tune", "bind", "maps", "launch"]
dtypes = ["bf16", "f16", "tf32"]
[tune]
CLUSTER = [2, 1, 4]
[maps.weight_map]
operand = "weight"
box     = ["BN // CLUSTER", "128 // sizeof_real"]
swizzle = 128
tf32    = true
[[launch]]
kernel = "matmul"
grid   = "CLUSTER * min(max(1, sms // CLUSTER), ceil_div(B * T, 128 * CLUSTER) * ceil_div(OC, BN))"
cluster = "CLUSTER"
---*/
#include "hopper_tile.cuh"

using namespace hopper_tile;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
           const __grid_constant__ TensorMap out_map, const Real* bias, int M, int OC, int C)
{
    extern __shared__ char shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    Ring ring(shared, full, empty);
    const int rank = cluster_rank(), clusters = gridDim.x / CLUSTER, steps = ceil_div(C, DEEP);
    const int down = ceil_div(M, BM * CLUSTER), tiles = down * ceil_div(OC, BN);
    if (threadIdx.x == 0) ring.set_up(COMPUTING / WARP_SIZE * CLUSTER);
    cluster_sync();

    if (threadIdx.x >= COMPUTING) {
        warpgroup_give_registers<GIVEN>();
        if (threadIdx.x == COMPUTING)
            for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += clusters) {
                const int2 origin = make_int2((tile % down * CLUSTER + rank) * BM, tile / down * BN);
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
        for (int tile = blockIdx.x / CLUSTER; tile < tiles; tile += clusters) {
            const int2 origin = make_int2((tile % down * CLUSTER + rank) * BM, tile / down * BN);
            const Bias<BN, true> added(bias, origin.y, OC);
            const auto finish = [&](float2 v, int j, int, int) { return added.add(v, j); };
            multiply_tile(sums, ring, steps, [&](uint64_t* empty) { lead.step(), ReleaseEverywhere<CLUSTER>()(empty); });
            store_boxes<BN>(sums, ring.boxes(group), &out_map, origin.x, origin.y, OC, finish);
        }
        tensor_store_wait<0>();
    }
    cluster_sync();  // a block's shared memory must stay valid until the other blocks' copies and arrivals have reached it
}
