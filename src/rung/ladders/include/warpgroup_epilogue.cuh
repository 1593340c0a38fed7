// How the sums of warpgroups become a tile of the output: first what is done to them (bias, GELU, ...), then the way they leave.
// A warpgroup has 64 rows of N columns of its block's tile; `finish(pair, row, column)` turns two neighbouring sums of the output's
// row and column into what is stored, also for places beyond the edges, where nothing is.
#pragma once
#include "tensor_map.cuh"
#include "warpgroup.cuh"

namespace hopper_tile {

constexpr int BOX = DEEP, BOX_BYTES = 64 * SWIZZLE_ROW;  // columns and bytes of what a warpgroup stores at once
constexpr int BOXES = 2;                                 // of each warpgroup

struct AddBias
{
    const Real* bias;
    int OC;
    __device__ __forceinline__ float2 operator()(float2 v, int, int column) const
    {
        if (!bias) return v;
        return make_float2(v.x + to_float(bias[min(column, OC - 1)]), v.y + to_float(bias[min(column + 1, OC - 1)]));
    }
};

// From registers to memory: pairs where rows are even, else number by number. m0 and n0 are the block's tile.
template <int N, class Finish>
__device__ __forceinline__ void store_pairs(const float (&sums)[N / 2], int m0, int n0, int M, int OC, Real* out, Finish finish)
{
    const int first = m0 + threadIdx.x / WARPGROUP * 64;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first + warpgroup_row(half);
        Real* to = out + size_t(row) * OC;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const int column = n0 + j * 8 + warpgroup_column();
            const float2 v = finish(make_float2(sums[j * 4 + half * 2], sums[j * 4 + half * 2 + 1]), row, column);
            if (row >= M || column >= OC) continue;
            if (OC % 2 == 0) {
                *reinterpret_cast<Vec<Real, 2>*>(to + column) = {from_float<Real>(v.x), from_float<Real>(v.y)};
            } else {
                to[column] = from_float<Real>(v.x);
                if (column + 1 < OC) to[column + 1] = from_float<Real>(v.y);
            }
        }
    }
}

// A warpgroup's columns n0 + c to n0 + c + BOX into a box in shared memory, swizzled as the map of the output is.
template <int N, class Finish>
__device__ __forceinline__ void fill_box(const float (&sums)[N / 2], char* box, int c, int m0, int n0, Finish finish)
{
    const int first = m0 + threadIdx.x / WARPGROUP * 64, warp_row = threadIdx.x % WARPGROUP / WARP_SIZE * 16;
#if defined(RUNG_F16) || defined(RUNG_BF16)
#pragma unroll
    for (int j = 0; j < BOX / 8; j += 2) {  // 16 columns of the warp's 16 rows
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = (c / 8 + j + i / 2) * 4 + i % 2 * 2;
            const float2 v = finish(make_float2(sums[at], sums[at + 1]), first + warpgroup_row(i % 2),
                                    n0 + c + (j + i / 2) * 8 + warpgroup_column());
            words[i] = pack2<Real>(v.x, v.y);
        }
        stmatrix_x4(box + swizzled_place(warp_row + lane_id() % 16, j + lane_id() / 16), words);
    }
#else
#pragma unroll
    for (int j = 0; j < BOX / 8; j++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = (c / 8 + j) * 4 + half * 2, column = j * 8 + warpgroup_column();
            *reinterpret_cast<float2*>(box + swizzled_place(warpgroup_row(half), column / 4) + column % 4 * 4) =
                finish(make_float2(sums[at], sums[at + 1]), first + warpgroup_row(half), n0 + c + column);
        }
    }
#endif
}

// By the copy engine, box after box: one is written while the one before is on its way. `boxes` are this warpgroup's own.
template <int N, class Finish>
__device__ __forceinline__ void store_boxes(const float (&sums)[N / 2], char* boxes, const TensorMap* out_map, int m0, int n0, int OC, Finish finish)
{
    static_assert(N % BOX == 0, "whole boxes");
    const int group = threadIdx.x / WARPGROUP;
    const bool leader = threadIdx.x % WARPGROUP == 0;
#pragma unroll
    for (int c = 0; c < N; c += BOX) {
        if (n0 + c >= OC) break;
        char* box = boxes + c / BOX % BOXES * BOX_BYTES;
        if (leader) tensor_store_wait_read<BOXES - 1>();
        sync_some<WARPGROUP>(1 + group);
        fill_box<N>(sums, box, c, m0, n0, finish);
        fence_async_proxy();
        sync_some<WARPGROUP>(1 + group);
        if (leader) tensor_store(out_map, box, n0 + c, m0 + group * 64), tensor_store_commit();
    }
}

// Rows that begin anywhere: a warp sends its own rows of a box, neighbouring lanes neighbouring numbers.
template <int N, class Finish>
__device__ __forceinline__ void store_ragged(const float (&sums)[N / 2], char* box, int m0, int n0, int M, int OC, Real* out, Finish finish)
{
    const int warp_row = threadIdx.x % WARPGROUP / WARP_SIZE * 16, first = m0 + threadIdx.x / WARPGROUP * 64;
#pragma unroll
    for (int c = 0; c < N; c += BOX) {
        if (n0 + c >= OC) break;
        __syncwarp();
        fill_box<N>(sums, box, c, m0, n0, finish);
        __syncwarp();
#pragma unroll 4
        for (int r = warp_row; r < warp_row + 16; r++) {
            if (first + r >= M) break;
            Real* to = out + size_t(first + r) * OC + n0 + c;
#pragma unroll
            for (int i = lane_id(); i < BOX; i += WARP_SIZE)
                if (n0 + c + i < OC)
                    to[i] = *reinterpret_cast<const Real*>(box + swizzled_place(r, i * int(sizeof(Real)) / 16) + i * sizeof(Real) % 16);
        }
    }
}

}  // namespace hopper_tile
