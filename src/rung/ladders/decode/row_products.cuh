// Rows of weights times a vector in shared memory. A warp has the same columns of all rows: chunks of 64 bytes, sixteen bytes for
// each of four lanes, eight rows at a time. products_*.cuh multiply the sixteen bytes.
#pragma once
#include "step_vector.cuh"

namespace decode {

static_assert(C % CHUNK == 0, "whole chunks");

// A warp's part of a tile: eight rows; rows beyond the last repeat the last.
struct Tile
{
    uint4 bits[MAX_CHUNKS];

    __device__ __forceinline__ void load(const WeightSource& ring, const Weights& w, int ahead, int first, int part, int row,
                                         int last)
    {
        row = min(row + row_of(lane_id() / 4), last);
        const auto from = ring.row(w, first, part, ahead, row) + (warp_id() * 64 + lane_id() % 4 * 16);
#pragma unroll
        for (int i = 0; i < MAX_CHUNKS; i++)
            if (i < CHUNKS_PER_WARP || warp_id() < WARPS_WITH_EXTRA) bits[i] = ring.piece(from + i * (STEP_WARPS * 64));
    }
};

// Stores the sums of eight rows over the warp's chunks; those of different vectors are BATCH elements apart.
__device__ __forceinline__ void put_sums(Address to, const Sums& sums)
{
    if constexpr (B == 1) {
        const float sum = sums.total();
        if (lane_id() % 4 == 0) put(to + row_of(lane_id() / 4) * 4, sum);
    } else {
        constexpr int LANES = COLUMNS_OF_VECTOR / 2;
#pragma unroll
        for (int set = 0; set < COLUMN_SETS; set++) {
            const int t = lane_id() % 4, b = (set * 4 + t) / LANES;
            const float sum = sums.total(set);
            if (t % LANES == 0 && b < B) put(to + (b * BATCH + row_of(lane_id() / 4)) * 4, sum);
        }
    }
}

// Up to N * 8 rows, the next unit of the ring or its next `w.parts` units.
template <int N>
__device__ __forceinline__ void multiply_rows(WeightSource& ring, const Weights& w, const Vector& vector, Words& x, Address sums,
                                              int first, int count)
{
    Sums acc[N];
#pragma unroll 1
    for (int part = 0; part < w.parts; part++) {
        if (w.parts > 1) x.load(vector, part);
        Tile tiles[N];  // all are requested before the first is used
        ring.await();
#pragma unroll
        for (int n = 0; n < N; n++) tiles[n].load(ring, w, 0, first, part, n * 8, count - 1);
#pragma unroll
        for (int i = 0; i < MAX_CHUNKS; i++)
            if (i < CHUNKS_PER_WARP || warp_id() < WARPS_WITH_EXTRA)
#pragma unroll
                for (int n = 0; n < N; n++) acc[n].add(tiles[n].bits[i], x, i);
        ring.release(slots_of(count));
    }
#pragma unroll
    for (int n = 0; n < N; n++) put_sums(sums + n * 32, acc[n]);
}

// Up to eight rows in several parts, some of which are requested together.
__device__ __forceinline__ void multiply_parts(WeightSource& ring, const Weights& w, const Vector& vector, Address sums,
                                               int first, int count)
{
    constexpr int TOGETHER = PARTS % 4 == 0 && TILES == 3 ? 4 : PARTS % 2 == 0 ? 2 : 1;
    Sums acc[TOGETHER];
#pragma unroll 1
    for (int part = 0; part < PARTS; part += TOGETHER) {
        Words x[TOGETHER];
        Tile tiles[TOGETHER];
#pragma unroll
        for (int p = 0; p < TOGETHER; p++) x[p].load(vector, part + p);
#pragma unroll
        for (int p = 0; p < TOGETHER; p++) {
            ring.await(p);
            tiles[p].load(ring, w, p * slots_of(count), first, part + p, 0, count - 1);
        }
#pragma unroll
        for (int i = 0; i < MAX_CHUNKS; i++)
            if (i < CHUNKS_PER_WARP || warp_id() < WARPS_WITH_EXTRA)
#pragma unroll
                for (int p = 0; p < TOGETHER; p++) acc[p].add(tiles[p].bits[i], x[p], i);
#pragma unroll
        for (int p = 0; p < TOGETHER; p++) ring.release(slots_of(count));
    }
#pragma unroll
    for (int p = 1; p < TOGETHER; p++) acc[0].add(acc[p]);
    put_sums(sums, acc[0]);
}

// Up to BATCH rows from `first` on: partial[warp][vector][row].
__device__ __forceinline__ void multiply(WeightSource& ring, const Weights& w, const Vector& vector, float* partial, int first,
                                         int rows)
{
    Address sums = smem_address(partial + warp_id() * (B * BATCH));
    Words x;
    if (w.parts == 1) x.load(vector, 0);
#pragma unroll 1
    for (int row = 0; row < rows; row += UNIT, sums += UNIT * 4) {
        const int count = min(UNIT, rows - row);
        if (TILES > 2 && count > 16)
            multiply_rows<TILES>(ring, w, vector, x, sums, first + row, count);
        else if (count > 8)
            multiply_rows<2>(ring, w, vector, x, sums, first + row, count);
        else if (B == 1 && PARTS > 1 && w.parts > 1)
            multiply_parts(ring, w, vector, sums, first + row, count);
        else
            multiply_rows<1>(ring, w, vector, x, sums, first + row, count);
    }
}

// The product of a row with vector b, summed over the warps' partial sums.
__device__ __forceinline__ float whole_sum(const float* partial, int row, int b = 0)
{
    float sums[2] = {};
#pragma unroll
    for (int w = 0; w < STEP_WARPS; w++) sums[w % 2] += partial[(w * B + b) * BATCH + row];
    return sums[0] + sums[1];
}

}  // namespace decode
