// Epilogues of wgmma products: operations on the sums (bias, GELU, ...), then the stores. A warpgroup has 64 rows of N columns of
// its block's tile; `finish(pair, j, row, column)` turns two neighbouring sums at the output's row and column, among the tile's
// columns from 8 * j on, into the values to store; it is also called beyond the edges, where nothing is stored.
#pragma once
#include "tensor_map.cuh"
#include "warpgroup.cuh"

namespace hopper_tile {

constexpr int BOX = SWIZZLE_ROW / sizeof(Real),
              BOX_BYTES = 64 * SWIZZLE_ROW;  // columns and bytes of one store of a warpgroup
#if !defined(BOXES)
#define BOXES 2  // per warpgroup: one is being stored while the other is filled; with those of a whole tile there is no wait
#endif

// The bias of this thread's sums of a tile, loaded before its products, so that the epilogue does not wait. EVEN: all rows of the
// output have even lengths.
template <int N, bool EVEN = false>
struct Bias
{
    // As in memory: two halves share one register, where the compiler would use two.
    using Pair = Vec<uint32_t, sizeof(Real) / 2>;
    Pair pairs[N / 8];

    __device__ __forceinline__ Bias(const Real* bias, int n0, int OC)
    {
        const int first = n0 + warpgroup_column();
#pragma unroll
        for (int j = 0; j < N / 8; j++) {  // beyond the edge the last pair is used
            if (!bias)
                pairs[j] = {};
            else if (EVEN || OC % 2 == 0)
                pairs[j] = *reinterpret_cast<const Pair*>(bias + min(first + j * 8, OC - 2));
            else
                pairs[j] = joined(bias[min(first + j * 8, OC - 1)], bias[min(first + j * 8 + 1, OC - 1)]);
        }
    }
    static __device__ __forceinline__ Pair joined(Real x, Real y)
    {
        const Real both[2] = {x, y};
        Pair pair;
        memcpy(&pair, both, sizeof(pair));
        return pair;
    }
    // Adds the bias to a pair of columns among the tile's from 8 * j on.
    __device__ __forceinline__ float2 add(float2 v, int j) const
    {
        Real both[2];
        memcpy(both, &pairs[j], sizeof(both));
        return make_float2(v.x + to_float(both[0]), v.y + to_float(both[1]));
    }
};

// x / 2 * (1 + tanh(u)) with one special function: a tile has 128 of them per thread.
__device__ __forceinline__ float gelu(float x)
{
    const float half = 0.5f * x;
    return half + half * tanh_approx(x * (0.7978845608f + 0.0356774081f * x * x));
}

__device__ __forceinline__ float2 gelu(float2 v) { return make_float2(gelu(v.x), gelu(v.y)); }

// Two neighbours of a matrix with unaligned rows, or at its edge.
__device__ __forceinline__ float2 pair_at(const Real* matrix, int row, int column, int rows, int columns)
{
    const Real* at = matrix + size_t(min(row, rows - 1)) * columns;
    return make_float2(to_float(at[min(column, columns - 1)]), to_float(at[min(column + 1, columns - 1)]));
}

// Stores from registers to memory: in pairs where rows have even lengths, else element by element. m0 and n0 are the block's
// tile.
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
            const float2 v = finish(make_float2(sums[j * 4 + half * 2], sums[j * 4 + half * 2 + 1]), j, row, column);
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

// Writes a warpgroup's columns n0 + c to n0 + c + BOX into a box in shared memory, swizzled like the output's map.
template <int N, class Finish>
__device__ __forceinline__ void fill_box(const float (&sums)[N / 2], char* box, int c, int m0, int n0, Finish finish)
{
    const int first = m0 + threadIdx.x / WARPGROUP * 64;
#if defined(RUNG_F16) || defined(RUNG_BF16)
    const int warp_row = threadIdx.x % WARPGROUP / WARP_SIZE * 16;
#pragma unroll
    for (int j = 0; j < BOX / 8; j += 2) {  // 16 columns of the warp's 16 rows
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = (c / 8 + j + i / 2) * 4 + i % 2 * 2;
            const float2 v = finish(make_float2(sums[at], sums[at + 1]), at / 4, first + warpgroup_row(i % 2),
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
                finish(make_float2(sums[at], sums[at + 1]), at / 4, first + warpgroup_row(half), n0 + c + column);
        }
    }
#endif
}

// Stores by the copy engine, box after box: one is filled while the previous one is being stored. `boxes` are this warpgroup's
// own.
template <int N, class Finish>
__device__ __forceinline__ void store_boxes(const float (&sums)[N / 2], char* boxes, const TensorMap* out_map, int m0, int n0,
                                            int OC, Finish finish)
{
    static_assert(N % BOX == 0, "whole boxes");
    const int group = threadIdx.x / WARPGROUP;
    const bool leader = threadIdx.x % WARPGROUP == 0;
#pragma unroll
    for (int c = 0; c < N; c += BOX) {
        if (n0 + c >= OC) break;
        char* box = boxes + c / BOX % BOXES * BOX_BYTES;
        if (leader && c == 0) tensor_store_wait_read<0>();  // of the previous tile, which may have ended with the first box
        if (leader && c > 0) tensor_store_wait_read<BOXES - 1>();
        sync_some<WARPGROUP>(1 + group);
        fill_box<N>(sums, box, c, m0, n0, finish);
        fence_async_proxy();
        sync_some<WARPGROUP>(1 + group);
        if (leader) tensor_store(out_map, box, n0 + c, m0 + group * 64), tensor_store_commit();
    }
}

// Unaligned rows: a warp stores its own rows of a box, each lane four aligned bytes of a row, and for 2-byte types the single
// elements at the ends of all rows at once.
template <int N, class Finish>
__device__ __forceinline__ void store_ragged(const float (&sums)[N / 2], char* box, int m0, int n0, int M, int OC, Real* out,
                                             Finish finish)
{
    constexpr int PER_WORD = 4 / sizeof(Real), AT_ONCE = 8;
    using Word = Vec<Real, PER_WORD>;
    const int warp_row = threadIdx.x % WARPGROUP / WARP_SIZE * 16, first = m0 + threadIdx.x / WARPGROUP * 64;
    const auto number = [&](int r, int i) {
        return *reinterpret_cast<const Real*>(box + swizzled_place(r, i * int(sizeof(Real)) / 16) + i * sizeof(Real) % 16);
    };
#pragma unroll
    for (int c = 0; c < N; c += BOX) {
        if (n0 + c >= OC) break;
        __syncwarp();
        fill_box<N>(sums, box, c, m0, n0, finish);
        __syncwarp();
        const int columns = min(BOX, OC - n0 - c);
        const auto begin = [&](int r) { return out + size_t(first + r) * OC + n0 + c; };
        const auto skipped = [&](int r) { return int(reinterpret_cast<uintptr_t>(begin(r)) % 4 / sizeof(Real)); };
#pragma unroll
        for (int r0 = warp_row; r0 < warp_row + 16; r0 += AT_ONCE) {
            Word words[AT_ONCE];
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++)
#pragma unroll
                for (int i = 0; i < PER_WORD; i++)
                    words[r][i] = number(r0 + r, min(lane_id() * PER_WORD + skipped(r0 + r) + i, BOX - 1));
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++) {
                const int i = lane_id() * PER_WORD + skipped(r0 + r);
                if (first + r0 + r < M && i + PER_WORD <= columns) *reinterpret_cast<Word*>(begin(r0 + r) + i) = words[r];
            }
        }
        if (PER_WORD == 2) {
            const int r = warp_row + lane_id() % 16, skip = skipped(r), i = lane_id() < 16 ? 0 : columns - 1;
            if (first + r < M && (lane_id() < 16 ? skip == 1 : (columns - skip) % 2 == 1)) begin(r)[i] = number(r, i);
        }
    }
}

// A warpgroup's part of another matrix of the output's shape, loaded into its boxes before the sums are ready.
template <int N>
struct Brought
{
    static constexpr int BYTES = N / BOX * BOX_BYTES;  // of each warpgroup
    char* boxes;                                       // this warpgroup's
    uint64_t* barrier;
    unsigned parity = 0;

    __device__ __forceinline__ Brought(char* boxes, uint64_t* barrier) : boxes(boxes), barrier(barrier) {}

    // Called by one thread, once the last tile's boxes have been stored.
    __device__ __forceinline__ void ask(const TensorMap* map, int m0, int n0, int OC)
    {
        tensor_store_wait_read<0>();
        byte_barrier_expect(barrier, (min(N, OC - n0) + BOX - 1) / BOX * BOX_BYTES);
        for (int c = 0; c < N && n0 + c < OC; c += BOX)
            tensor_load(boxes + c / BOX * BOX_BYTES, map, barrier, n0 + c, m0 + threadIdx.x / WARPGROUP * 64);
    }
    __device__ __forceinline__ void wait()
    {
        byte_barrier_wait(barrier, parity);
        parity ^= 1;
    }
};

// Adds a box's content to its columns of the sums.
template <int N>
__device__ __forceinline__ void add_box(float (&sums)[N / 2], const char* box, int c)
{
#if defined(RUNG_F16) || defined(RUNG_BF16)
    const int warp_row = threadIdx.x % WARPGROUP / WARP_SIZE * 16;
#pragma unroll
    for (int j = 0; j < BOX / 8; j += 2) {
        uint32_t words[4];
        ldmatrix_x4(words, box + swizzled_place(warp_row + lane_id() % 16, j + lane_id() / 16));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            Real pair[2];
            memcpy(pair, &words[i], 4);
            const int at = (c / 8 + j + i / 2) * 4 + i % 2 * 2;
            sums[at] += to_float(pair[0]), sums[at + 1] += to_float(pair[1]);
        }
    }
#else
#pragma unroll
    for (int j = 0; j < BOX / 8; j++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = (c / 8 + j) * 4 + half * 2, column = j * 8 + warpgroup_column();
            const float2 v =
                *reinterpret_cast<const float2*>(box + swizzled_place(warpgroup_row(half), column / 4) + column % 4 * 4);
            sums[at] += v.x, sums[at + 1] += v.y;
        }
    }
#endif
}

// Each box is added to the sums, filled with the result, and stored from the same place: a warp accesses only its own rows.
template <int N, class Finish>
__device__ __forceinline__ void store_onto(float (&sums)[N / 2], char* boxes, const TensorMap* out_map, int m0, int n0, int OC,
                                           Finish finish)
{
    const int group = threadIdx.x / WARPGROUP;
#pragma unroll
    for (int c = 0; c < N; c += BOX) {
        if (n0 + c >= OC) break;
        char* box = boxes + c / BOX * BOX_BYTES;
        add_box<N>(sums, box, c);
        fill_box<N>(sums, box, c, m0, n0, finish);
        fence_async_proxy();
        sync_some<WARPGROUP>(1 + group);
        if (threadIdx.x % WARPGROUP == 0) tensor_store(out_map, box, n0 + c, m0 + group * 64), tensor_store_commit();
    }
}

}  // namespace hopper_tile
