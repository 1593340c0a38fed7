// Attention by fused multiply-adds: a block's work on BR queries and BC keys, with TM x TN scores and its part of O in a thread's
// registers. HS, BR, BC, TM and TN are the rung's, and so are its two products and what it masks.
#pragma once
#include "rung.cuh"

constexpr int NX = BC / TN, NY = BR / TM;  // threads; each has columns NX apart of rows NY apart
constexpr int CHUNKS = HS / 4;             // of 16 bytes in a row of Q, K, V or O
constexpr int O_CHUNKS = (CHUNKS + NX - 1) / NX;
// Rows that a warp reads at once start in different banks.
constexpr int Q_STRIDE = HS + 4, P_STRIDE = BC + NX;
constexpr int DEPTH = TM * TN > 16 ? 1 : 2;  // of unrolling; more only costs registers
constexpr float LOG2_E = 1.4426950408889634f;

// Starts copying COUNT rows of HS numbers into shared memory; zeros beyond the last token. With `rotate`, row r begins
// r % NX chunks further on and wraps around, so that NX rows read at one column lie in different banks.
template <int COUNT, bool rotate>
__device__ __forceinline__ void load_tile(float* tile, int stride, const float* rows, int row_stride, int tokens)
{
    unsigned tid = threadIdx.y * NX + threadIdx.x;
#pragma unroll
    for (unsigned i = 0; i < COUNT * CHUNKS; i += NX * NY) {
        unsigned r = (i + tid) / CHUNKS, chunk = (i + tid) % CHUNKS, slot = rotate ? (chunk + r % NX) % CHUNKS : chunk;
        if (COUNT * CHUNKS % (NX * NY) != 0 && r >= COUNT) break;
        bool valid = (int)r < tokens;
        cp_async_16(tile + r * stride + 4 * slot, rows + (valid ? (int)r * row_stride : 0) + 4 * chunk, valid);
    }
}

using Scores = float[TM][TN];
using Output = float[TM][O_CHUNKS][4];
using PerRow = float[TM];  // a maximum, or a sum over the thread's columns: NX threads share a row

// Scores become weights, exp(scale x) = 2^(scale2 x), in P, and what has been summed shrinks to the new maximum. With a window a
// row may see no key of its block's first tile.
template <bool SOME_KEY_SEEN>
__device__ __forceinline__ void weigh_scores(const Scores& s, float* P, Output& o, PerRow& l, PerRow& m, float scale2)
{
    int tx = threadIdx.x, ty = threadIdx.y;
#pragma unroll
    for (int i = 0; i < TM; i++) {
        float largest = m[i];
#pragma unroll
        for (int j = 0; j < TN; j++) largest = fmaxf(largest, s[i][j]);
#pragma unroll
        for (int offset = NX / 2; offset > 0; offset /= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, offset));
        }
        float from = !SOME_KEY_SEEN && largest == -INFINITY ? 0.0f : largest;
        float shrink = exp2f((m[i] - from) * scale2);
        m[i] = largest;
        l[i] *= shrink;
#pragma unroll
        for (int j = 0; j < TN; j++) {
            float p = exp2f(fmaf(s[i][j], scale2, -from * scale2));
            l[i] += p;
            P[(ty + i * NY) * P_STRIDE + tx + j * NX] = p;
        }
#pragma unroll
        for (int j = 0; j < O_CHUNKS; j++) {
#pragma unroll
            for (int x = 0; x < 4; x++) o[i][j][x] *= shrink;
        }
    }
}
