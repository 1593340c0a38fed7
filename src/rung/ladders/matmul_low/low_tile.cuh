// Shared by the rungs on tensor cores: tiles of 64 x 64 outputs by four warps, 64 bytes deep, for any element size. In bytes the
// fragments of mma.sync are the same for 16 and 8 bits: 32 bytes of a row in four words, those of a column in two.
#pragma once
#include "rung.cuh"

constexpr int BM = 64, BN = 64, DEEP = 64;  // rows, columns, bytes of depth
constexpr int PITCH = DEEP + 16;            // eight rows begin in different banks
constexpr int THREADS = 128;                // warps two by two, 32 x 32 outputs each

struct Stage
{
    __align__(16) char x[BM][PITCH];
    __align__(16) char w[BN][PITCH];
};

// Starts copying 64 of the matrix's rows, WIDTH - 16 bytes from byte `at` on; zeros beyond the last row and the last byte.
template <int WIDTH>
__device__ __forceinline__ void load_rows(char (*tile)[WIDTH], const char* matrix, int row0, int rows, int64_t at,
                                          int64_t row_bytes)
{
    constexpr int PIECES = WIDTH / 16 - 1;
    for (int i = threadIdx.x; i < 64 * PIECES; i += THREADS) {
        const int r = i / PIECES, piece = i % PIECES * 16;
        const bool inside = row0 + r < rows && at + piece < row_bytes;
        cp_async_16(&tile[r][piece], inside ? matrix + (row0 + r) * row_bytes + at + piece : matrix, inside);
    }
}

// sums[i][j] += the products of 16 rows and 8 columns of this warp, over all of the depth; multiply(sums, a, b) takes 32 bytes.
template <class Sum, class Multiply>
__device__ __forceinline__ void tile_product(const void* x, const void* w, int M, int OC, int64_t row_bytes, Sum (&sums)[2][4][4],
                                             Multiply multiply)
{
    __shared__ Stage stages[2];
    const int lane = lane_id(), warp = warp_id(), m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
    const int rows = warp / 2 * 32, columns = warp % 2 * 32, steps = int((row_bytes + DEEP - 1) / DEEP);
    const auto load = [&](int step) {
        Stage& s = stages[step % 2];
        load_rows(s.x, static_cast<const char*>(x), m0, M, int64_t(step) * DEEP, row_bytes);
        load_rows(s.w, static_cast<const char*>(w), n0, OC, int64_t(step) * DEEP, row_bytes);
        cp_async_commit();
    };
    load(0);
    for (int step = 0; step < steps; step++) {
        cp_async_wait<0>();
        __syncthreads();  // the stage has arrived, and the other one is free
        if (step + 1 < steps) load(step + 1);
        const Stage& s = stages[step % 2];
#pragma unroll
        for (int k = 0; k < DEEP; k += 32) {
            uint32_t a[2][4], b[2][4];  // of b each register pair is a tile of eight columns
#pragma unroll
            for (int i = 0; i < 2; i++) {
                ldmatrix_x4(a[i], &s.x[rows + 16 * i + lane % 16][k + lane / 16 * 16]);
                ldmatrix_x4(b[i], &s.w[columns + 16 * i + lane % 8 + lane / 16 * 8][k + lane / 8 % 2 * 16]);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint32_t column[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
                    multiply(sums[i][j], a[i], column);
                }
            }
        }
    }
}

// Every output of this thread: store(row, column, sum).
template <class Sum, class Store>
__device__ __forceinline__ void each_output(int M, int OC, const Sum (&sums)[2][4][4], Store store)
{
    const int lane = lane_id(), warp = warp_id();
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = blockIdx.y * BM + warp / 2 * 32 + 16 * i + lane / 4 + e / 2 * 8;
                const int column = blockIdx.x * BN + warp % 2 * 32 + 8 * j + lane % 4 * 2 + e % 2;
                if (row < M && column < OC) store(row, column, sums[i][j][e]);
            }
        }
    }
}
