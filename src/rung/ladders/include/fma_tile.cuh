// matmul's rung 08 in pieces: the best main loop without tensor cores, for kernels that change the code around it. Read that rung
// first. Needs the macros BM BN BK (tile of a block, depth). A block has fma_tile::THREADS threads.
#pragma once
#include "rung.cuh"

namespace fma_tile {

constexpr int WM = 64, WN = 32;  // a warp's tile: 8 x 4 lanes of 8 x 8 outputs
constexpr int WARPS = (BM / WM) * (BN / WN), THREADS = WARPS * WARP_SIZE;
constexpr int PAD = 4;
constexpr int PER_ROW = BK / VEC;  // vectors in a row of a tile

using Sums = float[8][8];

// A vector of row `row`, from column `c` on; zeros beyond the matrix, element by element where rows are not aligned.
__device__ __forceinline__ Vec16<Real> fetch(const Real* matrix, int row, int rows, int c, int C)
{
    const Real* source = matrix + size_t(row) * C + c;
    Vec16<Real> v;
    if (C % VEC == 0 && row < rows && c < C) return load_vec(source);
#pragma unroll
    for (int j = 0; j < VEC; j++) v[j] = row < rows && c + j < C ? source[j] : from_float<Real>(0.0f);
    return v;
}

struct AsItIs
{
    __device__ __forceinline__ float operator()(float value, int, int) const { return value; }
};

// This thread's share of a tile, between global memory and its transposed place in shared memory. `change(value, r, c)` may
// transform the element in row r of the tile and column c of the matrix on the way.
template <int ROWS>
struct Staged
{
    Vec16<Real> v[ROWS * PER_ROW / THREADS];

    __device__ __forceinline__ void take(const Real* matrix, int r0, int rows, int c0, int C)
    {
#pragma unroll
        for (int i = 0; i < ROWS * PER_ROW / THREADS; i++) {
            const int index = threadIdx.x + i * THREADS;
            v[i] = fetch(matrix, r0 + index / PER_ROW, rows, c0 + index % PER_ROW * VEC, C);
        }
    }

    template <class Change = AsItIs>
    __device__ __forceinline__ void put(float (&tile)[BK][ROWS + PAD], int c0, Change change = {}) const
    {
#pragma unroll
        for (int i = 0; i < ROWS * PER_ROW / THREADS; i++) {
            const int index = threadIdx.x + i * THREADS;
            const int r = index / PER_ROW, k = index % PER_ROW * VEC;
#pragma unroll
            for (int j = 0; j < VEC; j++) tile[k + j][r] = change(to_float(v[i][j]), r, c0 + k + j);
        }
    }
};

__device__ __forceinline__ void read_eight(float (&to)[8], const float* low, const float* high)
{
    const Vec16<float> a = load_vec(low), b = load_vec(high);
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = a[i], to[i + 4] = b[i];
}

// This thread's first row and column in the block's tile: four from here on, and four more half a warp tile further.
__device__ __forceinline__ int first_row() { return threadIdx.x / 32 / (BN / WN) * WM + threadIdx.x % 32 / 4 * 4; }
__device__ __forceinline__ int first_col() { return threadIdx.x / 32 % (BN / WN) * WN + threadIdx.x % 4 * 4; }

// sum += x · weightᵀ for the tile at (m0, n0); `change` transforms the elements of x.
template <class Change = AsItIs>
__device__ __forceinline__ void multiply_tiles(Sums& sum, const Real* x, const Real* weight, int m0, int n0, int M, int OC, int C,
                                               Change change = {})
{
    __shared__ __align__(16) float x_tile[2][BK][BM + PAD];
    __shared__ __align__(16) float w_tile[2][BK][BN + PAD];
    const int ty = first_row(), tx = first_col();

    Staged<BM> x_next;
    Staged<BN> w_next;
    x_next.take(x, m0, M, 0, C);
    w_next.take(weight, n0, OC, 0, C);
    x_next.put(x_tile[0], 0, change);
    w_next.put(w_tile[0], 0);
    __syncthreads();

    int now = 0;
    for (int c0 = 0; c0 < C; c0 += BK) {
        const int c_next = c0 + BK;
        if (c_next < C) {
            x_next.take(x, m0, M, c_next, C);
            w_next.take(weight, n0, OC, c_next, C);
        }
#pragma unroll
        for (int k = 0; k < BK; k++) {
            float a[8], b[8];
            read_eight(a, &x_tile[now][k][ty], &x_tile[now][k][ty + WM / 2]);
            read_eight(b, &w_tile[now][k][tx], &w_tile[now][k][tx + WN / 2]);
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) sum[i][j] += a[i] * b[j];
        }
        if (c_next < C) {
            x_next.put(x_tile[now ^ 1], c_next, change);
            w_next.put(w_tile[now ^ 1], c_next);
        }
        __syncthreads();
        now ^= 1;
    }
}

// Loads those of four neighbours of a row at `from` that are inside; `whole` if all four are and the address is aligned.
__device__ __forceinline__ Vec<float, 4> load_four(const Real* from, int count, bool whole)
{
    Vec<float, 4> v;
    if (whole) {
        const Vec<Real, 4> four = *reinterpret_cast<const Vec<Real, 4>*>(from);
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = to_float(four[j]);
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = j < count ? to_float(from[j]) : 0.0f;
    }
    return v;
}

// Stores the block's tile of an M x OC output. `finish(v, row, col, count, whole)` may transform four sums of a row, bias added:
// `count` of them are inside, and `whole` says whether their address is aligned for one vector.
template <class Finish>
__device__ __forceinline__ void store_tile(const Sums& sum, int m0, int n0, int M, int OC, const Real* bias, Real* out,
                                           Finish finish)
{
    const bool whole = OC % 4 == 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int col = n0 + first_col() + half * (WN / 2);
        if (col >= OC) continue;
        Vec<float, 4> b = {};
        if (bias) b = load_four(bias + col, OC - col, whole);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int row = m0 + first_row() + i % 4 + i / 4 * (WM / 2);
            if (row >= M) continue;
            Vec<float, 4> v;
#pragma unroll
            for (int j = 0; j < 4; j++) v[j] = sum[i][half * 4 + j] + b[j];
            finish(v, row, col, OC - col, whole);
            Real* target = out + size_t(row) * OC + col;
            if (whole) {
                *reinterpret_cast<Vec<Real, 4>*>(target) = {from_float<Real>(v[0]), from_float<Real>(v[1]),
                                                            from_float<Real>(v[2]), from_float<Real>(v[3])};
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (col + j < OC) target[j] = from_float<Real>(v[j]);
            }
        }
    }
}

struct Unchanged
{
    __device__ __forceinline__ void operator()(Vec<float, 4>&, int, int, int, bool) const {}
};

}  // namespace fma_tile
