// matmul's rung 25 as a function, for products with other epilogues. Read that rung first; the macros are the same.
#pragma once
#include "hopper_tile.cuh"

namespace hopper_tile {

// `epilogue.before(origin)` is called by a multiplying warpgroup as its tile begins, `epilogue.after(sums, bias, origin)`
// with its sums.
template <class Epilogue>
__device__ __forceinline__ void product(const TensorMap& x_map, const TensorMap& weight_map, Ring& ring, const Real* bias_of_all,
                                        int M, int OC, int C, Epilogue& epilogue)
{
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
        Lead lead(steps);
        Sums sums;
        for (int tile = blockIdx.x / CLUSTER; tile < tiles.count(); tile += clusters) {
            const int2 origin = tiles.origin(tile, rank);
            epilogue.before(origin);
            const Bias<BN, !RAGGED> bias(bias_of_all, origin.y, OC);
            multiply_tile(sums, ring, steps, [&](uint64_t* empty) { lead.step(), ReleaseEverywhere<CLUSTER>()(empty); });
            epilogue.after(sums, bias, origin);
        }
        tensor_store_wait<0>();
    }
    cluster_sync();
}

// Stores `finish` of each pair of sums: by the copy engine, or by the warps where RAGGED says that rows are not aligned.
template <class Finish>
struct StoreTile
{
    char* boxes;
    const TensorMap* out_map;
    Real* out;
    int M, OC;
    Finish finish;

    __device__ __forceinline__ void before(int2) const {}
    __device__ __forceinline__ void after(const Sums& sums, const Bias<BN, !RAGGED>& bias, int2 origin) const
    {
        const auto biased = [&](float2 v, int j, int, int) { return finish(bias.add(v, j)); };
#if RAGGED
        store_ragged<BN>(sums, boxes, origin.x, origin.y, M, OC, out, biased);
#else
        store_boxes<BN>(sums, boxes, out_map, origin.x, origin.y, OC, biased);
#endif
    }
};

}  // namespace hopper_tile
