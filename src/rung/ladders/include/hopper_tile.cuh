// matmul's rungs from 22 on in pieces: a ring of stages that the copy engine fills and warpgroups multiply from. Read rungs 20
// and 21 first, which contain it in full. Needs the macros BN (columns of a block's tile) and STAGES. Of a block's THREADS the
// first COMPUTING are consumers, one warpgroup per 64 rows; the warpgroup after them is the producer.
#pragma once
#include "block_cluster.cuh"
#include "tensor_map.cuh"
#include "warpgroup_epilogue.cuh"

namespace hopper_tile {

constexpr int BM = 128, COMPUTING = BM / 64 * WARPGROUP, THREADS = COMPUTING + WARPGROUP;
constexpr int A_BYTES = BM * SWIZZLE_ROW, STAGE_BYTES = A_BYTES + BN * SWIZZLE_ROW;
constexpr int ALIGN = 1024;             // where the swizzle pattern starts again
constexpr int GIVEN = 24, TAKEN = 240;  // registers: 65,536 are 168 each at the start

using Sums = float[BN / 2];

__device__ __forceinline__ char* aligned(char* shared)
{
    return shared + (ALIGN - reinterpret_cast<uintptr_t>(shared) % ALIGN) % ALIGN;
}

// Stages and their barriers: `full` counts bytes, `empty` the warps that have read a stage. Producer and consumers advance
// independently.
struct Ring
{
    char* stages;
    uint64_t *full, *empty;
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ Ring(char* shared, uint64_t (&full)[STAGES], uint64_t (&empty)[STAGES])
        : stages(aligned(shared)), full(full), empty(empty)
    {
    }

    // Called by one thread of the block, before a barrier of all participants.
    __device__ __forceinline__ void set_up(int readers)
    {
        for (int i = 0; i < STAGES; i++) byte_barrier_init(full + i), byte_barrier_init(empty + i, readers);
    }
    __device__ __forceinline__ char* a() const { return stages + stage * STAGE_BYTES; }
    __device__ __forceinline__ char* b() const { return a() + A_BYTES; }
    __device__ __forceinline__ char* boxes(int group) const { return stages + STAGES * STAGE_BYTES + group * BOXES * BOX_BYTES; }
    __device__ __forceinline__ uint64_t* arrival() const { return full + stage; }
    __device__ __forceinline__ void advance()
    {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }

    // Called by the producer thread before it requests copies into this stage. In the first round all stages are free.
    __device__ __forceinline__ void open() const
    {
        byte_barrier_wait(empty + stage, parity ^ 1);
        byte_barrier_expect(full + stage, STAGE_BYTES);
    }
    __device__ __forceinline__ void wait() const { byte_barrier_wait(full + stage, parity); }
    __device__ __forceinline__ uint64_t* before() const { return empty + (stage == 0 ? STAGES : stage) - 1; }
};

struct ReleaseHere
{
    __device__ __forceinline__ void operator()(uint64_t* empty) const
    {
        if (lane_id() == 0) byte_barrier_arrive(empty);
    }
};

// Arrives at all blocks of the cluster, which fill the stage together.
template <int BLOCKS>
struct ReleaseEverywhere
{
    __device__ __forceinline__ void operator()(uint64_t* empty) const
    {
        if (lane_id() < BLOCKS) byte_barrier_arrive_at(empty, lane_id());
    }
};

// `rows` of the weights for all blocks of the cluster: each loads its share for all.
template <int BLOCKS>
__device__ __forceinline__ void tensor_load_shared(char* tile, const TensorMap* map, uint64_t* barrier, int rank, int rows, int k,
                                                   int row)
{
    const int share = rows / BLOCKS;
    if (BLOCKS == 1)
        tensor_load(tile, map, barrier, k, row);
    else
        tensor_load_multicast(tile + rank * share * SWIZZLE_ROW, map, barrier, (1 << BLOCKS) - 1, k, row + rank * share);
}

#if defined(LEAD)
// The first warpgroup runs LEAD steps ahead of the second, so that they do not store at the same time (rung 22). It releases a
// stage once the next has arrived, so that with a lead of STAGES steps it would wait for a stage that the second still has to
// read.
static_assert(LEAD < STAGES, "a lead wants one stage more");
struct Lead
{
    int left;
    __device__ __forceinline__ explicit Lead(int steps) : left(min(LEAD, steps))
    {
        // perhaps never true: LEAD may be 0
        if (threadIdx.x >= WARPGROUP && left > 0) sync_some<COMPUTING>(BARRIER);
    }
    __device__ __forceinline__ void step()
    {
        // perhaps never true: LEAD may be 0
        if (threadIdx.x < WARPGROUP && left > 0 && --left == 0) arrive_some<COMPUTING>(BARRIER);
    }
    static constexpr int BARRIER = 15;
};
#endif

#if defined(CLUSTER) && defined(GROUP)
// The order of the clusters' tiles (CLUSTER blocks, one below the other): GROUP of them down, then one to the right, until the
// band is done.
struct ClusterTiles
{
    int down, across;
    __device__ __forceinline__ int count() const { return down * across; }
    __device__ __forceinline__ int2 origin(int tile, int rank) const
    {
        const int band = tile / (GROUP * across), within = tile % (GROUP * across), height = min(down - band * GROUP, GROUP);
        return make_int2(((band * GROUP + within % height) * CLUSTER + rank) * BM, within / height * BN);
    }
};
#endif

// Four products of this warpgroup's 64 rows with a stage.
__device__ __forceinline__ void multiply_stage(Sums& sums, const Ring& ring, bool add)
{
    const SharedTile a = tile_along_depth(ring.a() + threadIdx.x / WARPGROUP * 64 * SWIZZLE_ROW), b = tile_along_depth(ring.b());
#pragma unroll
    for (int k = 0; k < SWIZZLE_ROW; k += PRODUCT_STEP) warpgroup_multiply<BN>(sums, a + k, b + k, add || k > 0);
}

// A tile's whole depth. `release` frees a stage: when the products of the next stage have been issued, those of this one are
// complete.
template <class Release = ReleaseHere>
__device__ __forceinline__ void multiply_tile(Sums& sums, Ring& ring, int steps, Release release = {})
{
    // perhaps never one turn: a product in three passes has three times the steps
    for (int step = 0; step < steps; step++) {
        ring.wait();
        warpgroup_begin();
        multiply_stage(sums, ring, step > 0);
        warpgroup_commit();
        warpgroup_wait<1>();
        if (step > 0) release(ring.before());
        ring.advance();
    }
    warpgroup_wait<0>();
    warpgroup_settle(sums);
    release(ring.before());
}

}  // namespace hopper_tile
