// Matrix products of many sequences, whose vectors are the columns.
#pragma once
#include "cached_keys.cuh"

namespace decode {

constexpr int WARPS = 8;

// 16 * TILES rows of weights times COLS columns. Eight warps split the depth, 32 at a time: a lane's 16 bytes of a row are eight
// consecutive elements in depth, which the tensor core takes as pairs at other depths. As weights and columns are permuted alike,
// the sum is the same.
template <int TILES, int K>
struct Tile
{
    static constexpr int ROWS = 16 * TILES, STEPS = K / 32, STRIDE = COLS + 4;

    uint4 low[TILES], high[TILES];  // the next step's weights: rows g and g + 8 of each tile
    float sum[TILES][COLS / 8][4] = {};

    __device__ __forceinline__ void request(const Real* weight, int row0, int rows, int step)
    {
        const int lane = lane_id(), g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const Real* at = weight + size_t(min(row0 + 16 * i + g, rows - 1)) * K + step * 32 + t * 8;
            low[i] = load_no_allocate(reinterpret_cast<const uint4*>(at));
            at = weight + size_t(min(row0 + 16 * i + g + 8, rows - 1)) * K + step * 32 + t * 8;
            high[i] = load_no_allocate(reinterpret_cast<const uint4*>(at));
        }
    }

    // Steps `first`, first + WARPS, ... before `last`; the first step's weights have been requested.
    __device__ __forceinline__ void multiply(const Real* weight, const Real* columns, int row0, int rows, int first, int last)
    {
        const int lane = lane_id(), g = lane / 4, t = lane % 4;
        for (int step = first; step < last; step += WARPS) {
            uint4 a_low[TILES], a_high[TILES], b[COLS / 8];
#pragma unroll
            for (int j = 0; j < COLS / 8; j++)
                b[j] = __ldcg(reinterpret_cast<const uint4*>(columns + size_t(8 * j + g) * K + step * 32 + t * 8));
#pragma unroll
            for (int i = 0; i < TILES; i++) a_low[i] = low[i], a_high[i] = high[i];
            if (step + WARPS < last) request(weight, row0, rows, step + WARPS);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                const uint32_t near[4] = {a_low[i].x, a_high[i].x, a_low[i].y, a_high[i].y};
                const uint32_t far[4] = {a_low[i].z, a_high[i].z, a_low[i].w, a_high[i].w};
#pragma unroll
                for (int j = 0; j < COLS / 8; j++) {
                    const uint32_t b_near[2] = {b[j].x, b[j].y}, b_far[2] = {b[j].z, b[j].w};
                    mma_m16n8k16<Real>(sum[i][j], near, b_near);
                    mma_m16n8k16<Real>(sum[i][j], far, b_far);
                }
            }
        }
    }

    // All warps' sums in the first warp's part of shared memory, column after column of a row; always in the same order.
    __device__ __forceinline__ float* total(float* shared) const
    {
        float own[TILES][COLS / 8][4];
        const int lane = lane_id(), warp = warp_id(), g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < COLS / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) own[i][j][e] = sum[i][j][e];
#pragma unroll
        for (int half = WARPS / 2; half >= 1; half /= 2) {
            float* part = shared + (warp % half) * ROWS * STRIDE;
            if (warp >= half && warp < 2 * half) {
#pragma unroll
                for (int i = 0; i < TILES; i++)
#pragma unroll
                    for (int j = 0; j < COLS / 8; j++)
#pragma unroll
                        for (int e = 0; e < 4; e += 2)
                            *reinterpret_cast<float2*>(part + (16 * i + g + 4 * e) * STRIDE + 8 * j + 2 * t) =
                                make_float2(own[i][j][e], own[i][j][e + 1]);
            }
            __syncthreads();
            if (warp < half) {
#pragma unroll
                for (int i = 0; i < TILES; i++)
#pragma unroll
                    for (int j = 0; j < COLS / 8; j++)
#pragma unroll
                        for (int e = 0; e < 4; e += 2) {
                            float2* at = reinterpret_cast<float2*>(part + (16 * i + g + 4 * e) * STRIDE + 8 * j + 2 * t);
                            own[i][j][e] += at->x, own[i][j][e + 1] += at->y;
                            if (half == 1) *at = make_float2(own[i][j][e], own[i][j][e + 1]);
                        }
            }
            __syncthreads();
        }
        return shared;
    }
};

}  // namespace decode
