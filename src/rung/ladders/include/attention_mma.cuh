// Attention by mma.sync: one warp's work on 16 * M_TILES queries and BC keys, with S, P and O in registers. Tiles of q, k and v
// are in shared memory, swizzled for ldmatrix. HS, BC, WARPS and M_TILES are the rung's, and so is what it masks.
#pragma once
#include "rung.cuh"

constexpr int BR = 16 * M_TILES * WARPS;
constexpr int CHUNKS = HS / 8;  // of 16 bytes in a row
constexpr bool SWIZZLED = CHUNKS % 8 == 0 || CHUNKS == 4;
constexpr int ROW = 8 * (SWIZZLED ? CHUNKS : CHUNKS + 1);  // an odd number of chunks per row needs no swizzle
constexpr float LOG2_E = 1.4426950408889634f;

// Where a chunk of a row lies in a tile: the same column's chunks of eight consecutive rows cover all 32 banks.
__device__ __forceinline__ int chunk_at(unsigned row, unsigned chunk)
{
    if (CHUNKS % 8 == 0) chunk ^= row % 8;
    if (CHUNKS == 4) chunk ^= row / 2 % 4;
    return row * ROW + chunk * 8;
}

// Starts copying COUNT rows of HS numbers into shared memory; zeros beyond the last token.
template <int COUNT>
__device__ __forceinline__ void load_tile(Real* tile, const Real* rows, int row_stride, int tokens)
{
#pragma unroll
    for (unsigned i = 0; i < COUNT * CHUNKS; i += 32 * WARPS) {
        unsigned row = (i + threadIdx.x) / CHUNKS, chunk = (i + threadIdx.x) % CHUNKS;
        if (COUNT * CHUNKS % (32 * WARPS) != 0 && row >= COUNT) break;
        bool valid = (int)row < tokens;
        cp_async_16(tile + chunk_at(row, chunk), rows + (valid ? (int)row * row_stride : 0) + chunk * 8, valid);
    }
}

using Queries = uint32_t[M_TILES][HS / 16][4];
// Of each 16 x 8 tile a lane holds rows lane / 4 and lane / 4 + 8, columns 2 * (lane % 4) and the next.
using Scores = float[M_TILES][BC / 8][4];
using Output = float[M_TILES][HS / 8][4];
using PerRow = float[M_TILES][2];  // a maximum, or a sum over the lane's columns: four lanes share a row

// A warp's queries from shared memory into the layout of a left operand.
__device__ __forceinline__ void load_queries(Queries& query, const Real* Q)
{
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < M_TILES; i++) {
#pragma unroll
        for (int kk = 0; kk < HS / 16; kk++) {
            ldmatrix_x4(query[i][kk], Q + chunk_at((warp * M_TILES + i) * 16 + lane % 16, 2 * kk + lane / 16));
        }
    }
}

// s += q k^T.
__device__ __forceinline__ void multiply_scores(Scores& s, const Queries& query, const Real* K)
{
    unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int kk = 0; kk < HS / 16; kk++) {
#pragma unroll
        for (int n = 0; n < BC / 16; n++) {
            uint32_t key[4];
            ldmatrix_x4(key, K + chunk_at(n * 16 + lane / 16 * 8 + lane % 8, 2 * kk + lane / 8 % 2));
#pragma unroll
            for (int i = 0; i < M_TILES; i++) {
                mma_m16n8k16<Real>(s[i][2 * n], query[i][kk], {key[0], key[1]});
                mma_m16n8k16<Real>(s[i][2 * n + 1], query[i][kk], {key[2], key[3]});
            }
        }
    }
}

// Scores become weights, exp(scale x) = 2^(scale2 x), and what has been summed shrinks to the new maximum. With a window a row
// may see no key of its first tile.
template <bool SOME_KEY_SEEN>
__device__ __forceinline__ void weigh_scores(Scores& s, Output& o, PerRow& l, PerRow& m, float scale2)
{
#pragma unroll
    for (int i = 0; i < M_TILES; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {  // rows lane / 4 and lane / 4 + 8
            float largest = m[i][h];
#pragma unroll
            for (int n = 0; n < BC / 8; n++) largest = fmaxf(largest, fmaxf(s[i][n][2 * h], s[i][n][2 * h + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
            float from = !SOME_KEY_SEEN && largest == -INFINITY ? 0.0f : largest;
            float shrink = exp2f((m[i][h] - from) * scale2);
            m[i][h] = largest;
            l[i][h] *= shrink;
#pragma unroll
            for (int n = 0; n < BC / 8; n++) {
#pragma unroll
                for (int x = 2 * h; x < 2 * h + 2; x++) {
                    s[i][n][x] = exp2f(fmaf(s[i][n][x], scale2, -from * scale2));
                    l[i][h] += s[i][n][x];
                }
            }
#pragma unroll
            for (int n = 0; n < HS / 8; n++) {
                o[i][n][2 * h] *= shrink;
                o[i][n][2 * h + 1] *= shrink;
            }
        }
    }
}

// P of 16 keys as a left operand: two neighbouring tiles of S have its layout.
__device__ __forceinline__ void pack_weights(uint32_t (&p)[M_TILES][4], const Scores& s, int kk)
{
#pragma unroll
    for (int i = 0; i < M_TILES; i++) {
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const float* pair = &s[i][2 * kk + x / 2][x % 2 * 2];
            p[i][x] = pack2<Real>(pair[0], pair[1]);
        }
    }
}

// o += p v, for the 16 keys from 16 * kk on; `lane` is the caller's, which keeps the schedule of a loop that is written out.
__device__ __forceinline__ void multiply_values(Output& o, const uint32_t (&p)[M_TILES][4], const Real* V, int kk, unsigned lane)
{
#pragma unroll
    for (int n = 0; n < HS / 16; n++) {
        uint32_t value[4];
        ldmatrix_x4_trans(value, V + chunk_at(kk * 16 + lane % 16, 2 * n + lane / 16));
#pragma unroll
        for (int i = 0; i < M_TILES; i++) {
            mma_m16n8k16<Real>(o[i][2 * n], p[i], {value[0], value[1]});
            mma_m16n8k16<Real>(o[i][2 * n + 1], p[i], {value[2], value[3]});
        }
    }
}

// The queries from `row0` on of head `nh` of text `b`.
__device__ __forceinline__ void store_rows(const Output& o, PerRow& l, const PerRow& m, Real* out, float* lse, int b, int nh,
                                           int row0, int T, int NH, float scale)
{
    unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < M_TILES; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            l[i][h] += __shfl_xor_sync(ALL_LANES, l[i][h], 1);
            l[i][h] += __shfl_xor_sync(ALL_LANES, l[i][h], 2);
            int t1 = row0 + i * 16 + lane / 4 + h * 8;
            if (t1 >= T) continue;
            Real* row = out + (((int64_t)b * T + t1) * NH + nh) * HS + lane % 4 * 2;
            float inverse = 1.0f / l[i][h];
#pragma unroll
            for (int n = 0; n < HS / 8; n++) {
                uint32_t pair = pack2<Real>(o[i][n][2 * h] * inverse, o[i][n][2 * h + 1] * inverse);
                *reinterpret_cast<uint32_t*>(row + n * 8) = pair;
            }
            if (lse != nullptr && lane % 4 == 0) {
                lse[((int64_t)b * NH + nh) * T + t1] = scale * m[i][h] + logf(l[i][h]);
            }
        }
    }
}
