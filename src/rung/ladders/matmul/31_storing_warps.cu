/*---
idea   = "Separate warps store unaligned rows: the consumer warpgroups write their tile to shared memory and continue, and three warps of the producer's warpgroup store it, in words of two elements, while the next tile is multiplied."
expect = "For 256x768x50257 rung 25 takes 18 us per tile, of which its aligned tiles take 11: 7 us per tile go into words that the copy engine cannot write. Overlapped with the products they cost nothing: three tiles one after the other, 35 to 40 us where rung 25 takes 56."
found  = "63.1 us at 256x768x50257 in bf16 on an H200 where rung 25 with the same tiles takes 69.9, Triton 49.2: three warps need longer for a tile's words than the products for the next. Rung 25 with 192 columns per tile, which spills less, takes 55.4."
side_experiment = "An experiment on rung 25, slower than that with 192 columns per tile."
from   = "matmul/25"
dtypes = ["bf16", "f16"]
arch_specific = true
needs  = ["sm >= 90 and sm < 100", "LEAD < STAGES", "C * sizeof_real % 16 == 0", "SHARED <= 231424"]
[tune]
BN      = [256, 192, 128]
STAGES  = [3, 4]
LEAD    = [0, 2]
CLUSTER = [2, 1]
GROUP   = [8, 1000]
[let]
SHARED = "STAGES * (128 + BN) * 128 + BN * 256 + 1024"
[define]
BOXES = "BN // 64"
[bind]
M = "B * T"
[maps.x_map]
operand = "x"
dims    = ["B * T", "C"]
box     = [128, 64]
swizzle = 128
[maps.weight_map]
operand = "weight"
box     = ["BN // CLUSTER", 64]
swizzle = 128
[[launch]]
kernel = "matmul"
grid   = "CLUSTER * min(max(1, sms // CLUSTER), ceil_div(B * T, 128 * CLUSTER) * ceil_div(OC, BN))"
block  = 384
cluster = "CLUSTER"
shared = "SHARED"
---*/
#include "hopper_tile.cuh"

using namespace hopper_tile;

constexpr int STORING = WARPGROUP / WARP_SIZE - 1, GIVEN_TO_STORE = 72, TAKEN_TO_MULTIPLY = 216;

// Stores rows warp, warp + STORING, ... of a tile from its boxes: aligned words of four bytes, and single elements at the ends of
// a row.
__device__ __forceinline__ void write_rows(const Ring& ring, int warp, int2 origin, int M, int OC, Real* out)
{
    const int columns = min(BN, OC - origin.y);
#pragma unroll 2
    for (int row = warp; row < min(BM, M - origin.x); row += STORING) {
        const char* boxes = ring.boxes(row / 64);
        const auto number = [&](int i) {
            const int byte = i % BOX * int(sizeof(Real));
            return *reinterpret_cast<const Real*>(boxes + i / BOX * BOX_BYTES + swizzled_place(row % 64, byte / 16) + byte % 16);
        };
        Real* to = out + size_t(origin.x + row) * OC + origin.y;
        const int skipped = reinterpret_cast<uintptr_t>(to) % 4 / sizeof(Real), first = lane_id() * 2 + skipped;
        Vec<Real, 2> words[BN / 64];
#pragma unroll
        for (int w = 0; w < BN / 64; w++)
            words[w] = {number(min(w * 64 + first, BN - 1)), number(min(w * 64 + first + 1, BN - 1))};
#pragma unroll
        for (int w = 0; w < BN / 64; w++)
            if (w * 64 + first + 2 <= columns) *reinterpret_cast<Vec<Real, 2>*>(to + w * 64 + first) = words[w];
        if (lane_id() == 0 && skipped == 1) to[0] = number(0);
        if (lane_id() == 1 && (columns - skipped) % 2 == 1) to[columns - 1] = number(columns - 1);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map, const Real* bias, Real* out,
           int M, int OC, int C)
{
    extern __shared__ char shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES], filled, written;  // barriers of the stages, and of the tile's boxes
    Ring ring(shared, full, empty);
    const int rank = cluster_rank(), clusters = gridDim.x / CLUSTER, steps = ceil_div(C, DEEP);
    const ClusterTiles tiles{ceil_div(M, BM * CLUSTER), ceil_div(OC, BN)};
    if (threadIdx.x == 0) {
        byte_barrier_init(&filled, COMPUTING / WARP_SIZE), byte_barrier_init(&written, STORING);
        ring.set_up(COMPUTING / WARP_SIZE * CLUSTER);
    }
    cluster_sync();

    unsigned turn = 0;
    if (threadIdx.x >= COMPUTING) {
        warpgroup_give_registers<GIVEN_TO_STORE>();
        const int warp = (threadIdx.x - COMPUTING) / WARP_SIZE - 1;
        if (threadIdx.x == COMPUTING)
            for (int tile = blockIdx.x / CLUSTER; tile < tiles.count(); tile += clusters) {
                const int2 origin = tiles.origin(tile, rank);
                for (int step = 0; step < steps; step++, ring.advance()) {
                    ring.open();
                    tensor_load(ring.a(), &x_map, ring.arrival(), step * DEEP, origin.x);
                    tensor_load_shared<CLUSTER>(ring.b(), &weight_map, ring.arrival(), rank, BN, step * DEEP, origin.y);
                }
            }
        else if (warp >= 0)
            for (int tile = blockIdx.x / CLUSTER; tile < tiles.count(); tile += clusters, turn++) {
                byte_barrier_wait(&filled, turn % 2);
                write_rows(ring, warp, tiles.origin(tile, rank), M, OC, out);
                __syncwarp();
                if (lane_id() == 0) byte_barrier_arrive(&written);
            }
    } else {
        warpgroup_take_registers<TAKEN_TO_MULTIPLY>();
        const int group = threadIdx.x / WARPGROUP;
        Lead lead(steps);
        Sums sums;
        for (int tile = blockIdx.x / CLUSTER; tile < tiles.count(); tile += clusters, turn++) {
            const int2 origin = tiles.origin(tile, rank);
            const Bias<BN> added(bias, origin.y, OC);
            multiply_tile(sums, ring, steps, [&](uint64_t* empty) { lead.step(), ReleaseEverywhere<CLUSTER>()(empty); });
            if (turn > 0) byte_barrier_wait(&written, (turn - 1) % 2);
#pragma unroll
            for (int c = 0; c < BN; c += BOX)
                fill_box<BN>(sums, ring.boxes(group) + c / BOX * BOX_BYTES, c, origin.x, origin.y,
                             [&](float2 v, int j, int, int) { return added.add(v, j); });
            __syncwarp();
            if (lane_id() == 0) byte_barrier_arrive(&filled);
        }
    }
    cluster_sync();
}
