// outᵀ = weight · xᵀ with weights of eight bits and x of sixteen: matmul's rung 25 (hopper_product.cuh, read that rung first) with
// the weights on the left, since wgmma takes its left operand from registers too. There the weights are converted; x's tile is the
// right operand, in shared memory. A tile has 128 columns of the output and BN of its rows.
#pragma once
#include "hopper_tile.cuh"

namespace hopper_tile {

constexpr int WEIGHT_ROW = DEEP, WEIGHT_BYTES = BM * WEIGHT_ROW;  // a weight is a byte
constexpr int BOTH_BYTES = WEIGHT_BYTES + BN * SWIZZLE_ROW;       // of a stage
constexpr int BOX_ROWS = BN < 64 ? BN : 64;                       // of the output, of one store

// stmatrix_x4 with the matrices transposed: a register holds two rows of a column.
__device__ __forceinline__ void stmatrix_x4_trans(void* smem, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(smem)), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

struct WeightRing : Ring
{
    using Ring::Ring;
    __device__ __forceinline__ char* weights() const { return stages + stage * BOTH_BYTES; }
    __device__ __forceinline__ char* x() const { return weights() + WEIGHT_BYTES; }
    __device__ __forceinline__ char* boxes(int group) const { return stages + STAGES * BOTH_BYTES + group * BOXES * BOX_BYTES; }
    __device__ __forceinline__ void open() const
    {
        byte_barrier_wait(empty + stage, parity ^ 1);
        byte_barrier_expect(full + stage, BOTH_BYTES);
    }
};

// A tile's whole depth. A product reads its weights from registers until it is complete: each of a stage's products has its own
// four, which are loaded and converted while the previous ones run. convert(two) makes two numbers of two bytes.
template <class Convert, class Release>
__device__ __forceinline__ void multiply_converted(Sums& sums, WeightRing& ring, int steps, Convert convert, Release release)
{
    constexpr int PRODUCTS = SWIZZLE_ROW / PRODUCT_STEP;
    const int row = threadIdx.x / WARPGROUP * 64 + warpgroup_row(0);
    const int place = row * WEIGHT_ROW + (row / 2 % 4 * 16) + warpgroup_column();  // the swizzle of rows of 64 bytes
    uint32_t parts[PRODUCTS][4];
    for (int step = 0; step < steps; step++) {
        ring.wait();
        const SharedTile b = tile_along_depth(ring.x());
#pragma unroll
        for (int k = 0; k < PRODUCTS; k++) {
            const char* from = ring.weights() + (place ^ k * 16);
            const auto pair = [&](int bytes) { return convert(uint32_t(*reinterpret_cast<const uint16_t*>(from + bytes))); };
            warpgroup_wait<PRODUCTS - 1>();  // for the last stage's product that read these registers
            parts[k][0] = pair(0), parts[k][1] = pair(8 * WEIGHT_ROW);
            parts[k][2] = pair(8), parts[k][3] = pair(8 * WEIGHT_ROW + 8);
            warpgroup_begin();
            warpgroup_multiply<BN>(sums, parts[k], b + k * PRODUCT_STEP, step > 0 || k > 0);
            warpgroup_commit();
        }
        if (step > 0) __syncwarp(), release(ring.before());  // one lane signals that all have read their weights
        ring.advance();
    }
    warpgroup_wait<0>();
    warpgroup_settle(sums);
    __syncwarp(), release(ring.before());
}

// Writes the sums of BOX_ROWS rows of the output, from the tile's row c on, into a box: the sums' rows are its columns.
__device__ __forceinline__ void fill_box_across(const Sums& sums, char* box, int c, const float (&scales)[2])
{
    const int piece = threadIdx.x % WARPGROUP / WARP_SIZE * 2 + lane_id() / 8 % 2;  // of eight columns
#pragma unroll
    for (int j = 0; j < BOX_ROWS / 8; j += 2) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = (c / 8 + j + i / 2) * 4 + i % 2 * 2;
            words[i] = pack2<Real>(sums[at] * scales[i % 2], sums[at + 1] * scales[i % 2]);
        }
        stmatrix_x4_trans(box + swizzled_place((j + lane_id() / 16) * 8 + lane_id() % 8, piece), words);
    }
}

// The sums times the scales of their weights, stored box after box by the copy engine.
__device__ __forceinline__ void store_boxes_across(const Sums& sums, char* boxes, const TensorMap* out_map, int n0, int m0, int M,
                                                   const float (&scales)[2])
{
    const int group = threadIdx.x / WARPGROUP;
    const bool leader = threadIdx.x % WARPGROUP == 0;
#pragma unroll
    for (int c = 0; c < BN; c += BOX_ROWS) {
        if (m0 + c >= M) break;
        char* box = boxes + c / BOX_ROWS % BOXES * BOX_BYTES;
        if (leader && c == 0) tensor_store_wait_read<0>();  // of the previous tile, which may have ended with the first box
        // perhaps never true: a tile of few rows has one box
        if (leader && c > 0) tensor_store_wait_read<BOXES - 1>();
        sync_some<WARPGROUP>(1 + group);
        fill_box_across(sums, box, c, scales);
        fence_async_proxy();
        sync_some<WARPGROUP>(1 + group);
        if (leader) tensor_store(out_map, box, n0 + group * 64, m0 + c), tensor_store_commit();
    }
}

// Unaligned rows: eight lanes store neighbours.
__device__ __forceinline__ void store_across(const Sums& sums, Real* out, int n0, int m0, int M, int OC, const float (&scales)[2])
{
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        const int column = n0 + threadIdx.x / WARPGROUP * 64 + warpgroup_row(i / 2 % 2);
        const int row = m0 + i / 4 * 8 + warpgroup_column() + i % 2;
        if (row < M && column < OC) out[size_t(row) * OC + column] = from_float<Real>(sums[i] * scales[i / 2 % 2]);
    }
}

template <class Convert>
__device__ __forceinline__ void product_across(const TensorMap& w_map, const TensorMap& x_map, const TensorMap& out_map,
                                               WeightRing& ring, const float* w_scale, Real* out, int M, int OC, int C,
                                               Convert convert)
{
    const int rank = cluster_rank(), clusters = gridDim.x / CLUSTER, steps = ceil_div(C, DEEP);
    const ClusterTiles tiles{ceil_div(OC, BM * CLUSTER), ceil_div(M, BN)};
    if (threadIdx.x == 0) ring.set_up(COMPUTING / WARP_SIZE * CLUSTER);
    cluster_sync();

    if (threadIdx.x >= COMPUTING) {
        warpgroup_give_registers<GIVEN>();
        if (threadIdx.x == COMPUTING)
            for (int tile = blockIdx.x / CLUSTER; tile < tiles.count(); tile += clusters) {
                const int2 origin = tiles.origin(tile, rank);
                for (int step = 0; step < steps; step++, ring.advance()) {
                    ring.open();
                    tensor_load(ring.weights(), &w_map, ring.arrival(), step * DEEP, origin.x);
                    tensor_load_shared<CLUSTER>(ring.x(), &x_map, ring.arrival(), rank, BN, step * DEEP, origin.y);
                }
            }
    } else {
        warpgroup_take_registers<TAKEN>();
        const int group = threadIdx.x / WARPGROUP;
        Sums sums;
        for (int tile = blockIdx.x / CLUSTER; tile < tiles.count(); tile += clusters) {
            const int2 origin = tiles.origin(tile, rank);
            float scales[2];
#pragma unroll
            for (int half = 0; half < 2; half++) scales[half] = w_scale[min(origin.x + group * 64 + warpgroup_row(half), OC - 1)];
            multiply_converted(sums, ring, steps, convert, ReleaseEverywhere<CLUSTER>());
#if RAGGED
            store_across(sums, out, origin.x, origin.y, M, OC, scales);
#else
            store_boxes_across(sums, ring.boxes(group), &out_map, origin.x, origin.y, M, scales);
#endif
        }
        tensor_store_wait<0>();
    }
    cluster_sync();
}

}  // namespace hopper_tile
