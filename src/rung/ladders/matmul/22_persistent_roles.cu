/*---
idea   = "Persistent blocks: the producer continues with the next tile while this one is stored, and one of the two consumer warpgroups runs LEAD steps ahead, so that it stores while the other still multiplies."
expect = "A depth of 768 is 12 steps, 12,000 tensor-core cycles per tile; storing takes some 1,500 and filling the ring 1,000 more. The products hide both: 0.9x cublasLt where rung 21 has 0.75x, and a smaller gain at a depth of 8192."
found  = "90.8 us at 8192x768x3072 in bf16 on an H200, 1.06x over rung 21 and 0.69x cublasLt, where 0.9x was expected. Without a lead it takes 89.4 us: the lead gains nothing. The stores of pairs from registers are the remaining cost: rung 25 stores through shared memory and takes 64.5 us."
from   = "matmul/21"
inherit = ["arch_specific", "tune", "bind", "maps", "launch"]
dtypes = ["bf16", "f16", "tf32"]
needs  = ["sm >= 90 and sm < 100", "LEAD < STAGES", "C * sizeof_real % 16 == 0"]
[tune]
LEAD   = [2, 0, 1, 3]
[[launch]]
kernel = "matmul"
grid   = "min(sms, ceil_div(B * T, 128) * ceil_div(OC, BN))"
---*/
#include "hopper_tile.cuh"

using namespace hopper_tile;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map, const Real* bias, Real* out,
           int M, int OC, int C)
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
        const int group = threadIdx.x / WARPGROUP, lead = min(LEAD, steps);
        int done = 0;
        auto release = [&](uint64_t* empty) {
            if (lane_id() == 0) byte_barrier_arrive(empty);
            if (group == 0 && ++done == lead) arrive_some<COMPUTING>(1);
        };
        if (group == 1 && lead > 0) sync_some<COMPUTING>(1);
        Sums sums;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const Bias<BN> added(bias, tile / down * BN, OC);
            const auto finish = [&](float2 v, int j, int, int) { return added.add(v, j); };
            multiply_tile(sums, ring, steps, release);
            store_pairs<BN>(sums, tile % down * BM, tile / down * BN, M, OC, out, finish);
        }
    }
}
