/*---
idea   = "Stores by the copy engine: a warpgroup writes 64 columns of its tile to swizzled shared memory with stmatrix, and the copy engine stores the box while the next is being written."
expect = "Before, four lanes stored 16 bytes of a row, half a sector, 64 times per tile; stmatrix writes 16 columns of 16 rows with one instruction and without conflicts, and boxes are stored in whole lines: 400 cycles instead of 1,500. Stores that were hidden gain nothing, the last tile of each block does: 3 % at 8192x768x3072."
found  = "Right on an H200 at the 7 cases in bf16 and the 8 in tf32 whose rows are multiples of 16 bytes. It was not timed alone there; rung 25, which stores the same way, shows the gain."
from   = "matmul/22"
inherit = ["arch_specific", "needs", "tune", "bind", "maps", "launch"]
dtypes = ["bf16", "f16", "tf32"]
needs  = "OC * sizeof_real % 16 == 0"
[maps.out_map]
operand = "out"
dims    = ["B * T", "OC"]
box     = [64, "128 // sizeof_real"]
swizzle = 128
[[launch]]
kernel = "matmul"
shared = "STAGES * (128 + BN) * 128 + 4 * 8192 + 1024"
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
    const int down = ceil_div(M, BM), tiles = down * ceil_div(OC, BN), steps = ceil_div(C, DEEP);
    if (threadIdx.x == 0) ring.set_up(COMPUTING / WARP_SIZE);
    __syncthreads();

    if (threadIdx.x >= COMPUTING) {
        warpgroup_give_registers<GIVEN>();
        if (threadIdx.x == COMPUTING)
            for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
                for (int step = 0; step < steps; step++, ring.advance()) {
                    ring.open();
                    tensor_load(ring.a(), &x_map, ring.arrival(), step * DEEP, tile % down * BM);
                    tensor_load(ring.b(), &weight_map, ring.arrival(), step * DEEP, tile / down * BN);
                }
    } else {
        warpgroup_take_registers<TAKEN>();
        const int group = threadIdx.x / WARPGROUP;
        Lead lead(steps);
        Sums sums;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const Bias<BN, true> added(bias, tile / down * BN, OC);
            const auto finish = [&](float2 v, int j, int, int) { return added.add(v, j); };
            multiply_tile(sums, ring, steps, [&](uint64_t* empty) { lead.step(), ReleaseHere()(empty); });
            store_boxes<BN>(sums, ring.boxes(group), &out_map, tile % down * BM, tile / down * BN, OC, finish);
        }
        tensor_store_wait<0>();
    }
}
