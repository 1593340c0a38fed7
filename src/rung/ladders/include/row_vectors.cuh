// A row of C numbers in the registers of BLOCK threads or of a warp, in vectors of 16 bytes: LANES threads share a row, VECTORS
// vectors each. If C is no multiple of VEC, rows do not begin at multiples of 16 bytes: the same registers then hold single
// columns, LANES apart. LANES, VECTORS and ALIGNED are the rung's.
#pragma once
#include "rung.cuh"

using Row = Vec<Real, VEC>[VECTORS];

__device__ __forceinline__ int column(int i, int j)
{
    const int lane = int(threadIdx.x) % LANES;
    return ALIGNED ? (i * LANES + lane) * VEC + j : (i * VEC + j) * LANES + lane;
}

// Aligned vectors are entirely inside the row or entirely outside.
__device__ __forceinline__ bool inside(int i, int j, int C) { return column(i, ALIGNED ? 0 : j) < C; }

__device__ __forceinline__ void load_row(Row& a, const Real* __restrict__ row, int C)
{
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (ALIGNED) {
            if (inside(i, 0, C)) a[i] = load_vec(row + column(i, 0));
        } else {
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                if (inside(i, j, C)) a[i][j] = row[column(i, j)];
        }
    }
}

__device__ __forceinline__ void store_row(Real* __restrict__ row, int C, const Row& a)
{
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (ALIGNED) {
            if (inside(i, 0, C)) store_vec(row + column(i, 0), a[i]);
        } else {
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                if (inside(i, j, C)) row[column(i, j)] = a[i][j];
        }
    }
}
