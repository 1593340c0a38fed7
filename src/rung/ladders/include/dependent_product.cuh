// matmul's rung 26 as a function, for programmatic dependent launch: weights and bias, which no kernel writes, are loaded at
// once, and x when its producer has finished. Read rung 26 first; the macros are the same, plus SHARE: the number of blocks of a
// cluster with neighbouring columns, each of which loads its share of their x for all.
#pragma once
#include "block_cluster.cuh"
#include "tensor_map.cuh"
#include "warpgroup.cuh"

namespace dependent_product {

constexpr int BM = 64 * GROUPS, THREADS = GROUPS * WARPGROUP, A_BYTES = BM * SWIZZLE_ROW,
              STAGE_BYTES = A_BYTES + BN * SWIZZLE_ROW;
constexpr int PITCH = BN % 16 == 8 ? BN : BN + 8;  // floats from row to row: 8 more than a multiple of 16 has no bank conflicts
constexpr int PIECES = BM * BN / 4;                // of four sums
constexpr int SHARED_ROWS = BM / SHARE;            // rows of x loaded by one block

// `finish` turns a sum, bias included, into what is stored.
template <class Finish>
__device__ __forceinline__ void product(const TensorMap& x_map, const TensorMap& weight_map, const Real* bias, Real* out, int M,
                                        int OC, int C, Finish finish)
{
    extern __shared__ char shared[];
    __shared__ uint64_t full[STAGES];
    __shared__ float biases[BN];
    char* stages = shared + (1024 - reinterpret_cast<uintptr_t>(shared) % 1024) % 1024;
    const int part = cluster_rank() % SPLIT, share = cluster_rank() / SPLIT, group = warp_id() / 4;
    const int m0 = blockIdx.x / (SPLIT * SHARE) * BM, n0 = (blockIdx.y * SHARE + share) * BN;
    const int all = ceil_div(C, DEEP), first = all * part / SPLIT, steps = all * (part + 1) / SPLIT - first;

    auto stage_of = [&](int step) { return stages + step % STAGES * STAGE_BYTES; };
    auto load_weight = [&](int step) {
        uint64_t* barrier = full + step % STAGES;
        byte_barrier_expect(barrier, STAGE_BYTES);
        tensor_load(stage_of(step) + A_BYTES, &weight_map, barrier, (first + step) * DEEP, n0);
    };
    auto load_x = [&](int step) {
        uint64_t* barrier = full + step % STAGES;
        if (SHARE == 1) return tensor_load(stage_of(step), &x_map, barrier, (first + step) * DEEP, m0);
        unsigned sharing = 0;
        for (int i = 0; i < SHARE; i++) sharing |= 1 << (i * SPLIT + part);
        tensor_load_multicast(stage_of(step) + share * SHARED_ROWS * SWIZZLE_ROW, &x_map, barrier, sharing, (first + step) * DEEP,
                              m0 + share * SHARED_ROWS);
    };
    pdl_launch_dependents();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) byte_barrier_init(full + i);
        for (int step = 0; step < min(STAGES, steps); step++) load_weight(step);
        tensor_prefetch(&x_map);
    }
    for (int i = threadIdx.x; i < BN; i += THREADS) biases[i] = bias && n0 + i < OC ? to_float(bias[n0 + i]) : 0.0f;
    if (SHARE > 1) cluster_sync();  // the others' barriers are initialised
    if (threadIdx.x == 0) {
        pdl_wait();
        for (int step = 0; step < min(STAGES, steps); step++) load_x(step);
    }
    __syncthreads();

    float sums[BN / 2];
    for (int step = 0; step < steps; step++) {
        const char* stage = stage_of(step);
        const SharedTile a = tile_along_depth(stage + group * 64 * SWIZZLE_ROW), b = tile_along_depth(stage + A_BYTES);
        byte_barrier_wait(full + step % STAGES, step / STAGES % 2);
        warpgroup_begin();
#pragma unroll
        for (int k = 0; k < SWIZZLE_ROW; k += PRODUCT_STEP) warpgroup_multiply<BN>(sums, a + k, b + k, step > 0 || k > 0);
        warpgroup_commit();
        if (step > 0 && step - 1 + STAGES < steps) {  // the previous step's stage is refilled
            warpgroup_wait<1>();
            __syncthreads();
            if (threadIdx.x == 0) load_weight(step - 1 + STAGES), load_x(step - 1 + STAGES);
        }
    }
    warpgroup_wait<0>();
    warpgroup_settle(sums);

    // Every block writes its sums to the memory of its stages, and adds up its share of the tile's pieces over all blocks.
    __syncthreads();
    float* partial = reinterpret_cast<float*>(stages);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
            *reinterpret_cast<float2*>(partial + (group * 64 + warpgroup_row(half)) * PITCH + j * 8 + warpgroup_column()) =
                steps > 0 ? make_float2(sums[j * 4 + half * 2], sums[j * 4 + half * 2 + 1]) : make_float2(0.0f, 0.0f);
    cluster_sync();
    uint32_t from[SPLIT];
#pragma unroll
    for (int i = 0; i < SPLIT; i++) from[i] = cluster_address(partial, share * SPLIT + i);
    // perhaps never skipped: a block has at least one piece per thread, perhaps never one turn: mostly several
    for (int piece = PIECES * part / SPLIT + threadIdx.x; piece < PIECES * (part + 1) / SPLIT; piece += THREADS) {
        const int row = piece / (BN / 4), column = piece % (BN / 4) * 4;
        float4 parts[SPLIT];
#pragma unroll
        for (int i = 0; i < SPLIT; i++) parts[i] = cluster_load(from[i] + (row * PITCH + column) * 4);
        if (m0 + row >= M) continue;
        Vec<Real, 4> result;
        Real* to = out + size_t(m0 + row) * OC + n0 + column;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float sum = biases[column + e];
#pragma unroll
            for (int i = 0; i < SPLIT; i++) sum += e == 0 ? parts[i].x : e == 1 ? parts[i].y : e == 2 ? parts[i].z : parts[i].w;
            result[e] = from_float<Real>(finish(sum));
        }
        if (OC % 4 == 0 && n0 + column < OC)
            *reinterpret_cast<Vec<Real, 4>*>(to) = result;
        else
            for (int e = 0; e < 4; e++)
                if (n0 + column + e < OC) to[e] = result[e];
    }
    cluster_sync();  // a block's shared memory must stay valid until the others have read it
}

}  // namespace dependent_product
