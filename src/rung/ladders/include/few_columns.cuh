// Products of few rows of x with a matrix on tensor cores, limited by memory. Sixteen rows of the matrix are the rows of an mma,
// and up to eight rows of x its columns. Each number of the matrix is loaded once, 16 bytes per lane, straight into the registers
// that the mma reads: a lane's eight neighbouring numbers serve two mmas, since the order of a sum's terms is free as long as both
// operands have the same. All warps share a tile's depth, chunk by chunk, so that a warp needs only its own chunks of x, which stay
// in registers for all tiles of the block. Loads of the next tile replace a chunk as soon as it is multiplied.
//
// M (rows of x), C, WARPS, DEPTH (chunks of a warp in flight), ROUNDS (of DEPTH chunks in a tile), TALL (tiles of 16 rows that are
// multiplied together) and EARLY are the rung's.
#pragma once
#include "numbers.cuh"

namespace few_columns {

constexpr int THREADS = 32 * WARPS, CHUNK = 32, CHUNKS = C / CHUNK, GROUPS = ceil_div(M, 8), TILE = 16 * TALL;
constexpr int PITCH = 20, PLANE = 8 * PITCH;  // floats from column to column of a tile's sums, and of a tile: no bank conflicts
constexpr bool EVEN = CHUNKS == ROUNDS * DEPTH * WARPS;
static_assert(C % CHUNK == 0 && sizeof(Real) == 2, "whole chunks of 16-bit numbers");

enum Norm { NONE, RMS, LAYER };

struct Moments
{
    float sum, squares;  // of squares, or of squared distances from the mean of the same numbers
};

// The sum of four neighbouring lanes.
__device__ __forceinline__ float sum_of_four(float x)
{
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// The eight numbers, each by `change(number, its place)`.
template <class Change>
__device__ __forceinline__ uint4 changed(const uint4& given, Change change)
{
    auto pair = [&](int i) { return pack2<Real>(change(number_at(given, i), i), change(number_at(given, i + 1), i + 1)); };
    return make_uint4(pair(0), pair(2), pair(4), pair(6));
}

// `store(m, row, sums)` gets the sum of each row of x and row of the matrix, or with PER = 2 of two neighbouring rows of the
// matrix. `early(m, row)` is what it adds to a sum, loaded before the sums are there. x, and what `early` reads, may be computed by
// the kernel ahead.
template <Norm NORM, int PER, class Early, class Store>
__device__ __forceinline__ void products(const Real* __restrict__ x, const Real* __restrict__ gain,
                                         const Real* __restrict__ shift, const Real* __restrict__ weight, int rows, float eps,
                                         Early early, Store store)
{
    static_assert(NORM == NONE || ROUNDS == 1, "normalised rows stay in registers");
    extern __shared__ float sums[];  // (2, WARPS, TALL, GROUPS, 8, PITCH)
    __shared__ Moments moments[WARPS][8 * GROUPS];
    constexpr int OUTPUTS = M * TILE / PER, MINE = ceil_div(OUTPUTS, THREADS);
    const int lane = lane_id(), warp = warp_id(), g = lane / 4, t = lane % 4, tiles = ceil_div(rows, TILE);

    // RMSNorm's rows have two parts, since their norm is applied to the sums: x times the gain, and what its rounding lost.
    constexpr int PARTS = NORM == RMS ? 2 : 1;
    uint4 w[DEPTH][TALL][2], b[DEPTH][GROUPS], lost[DEPTH][GROUPS];
    auto chunk_of = [&](int round, int i) { return (round * DEPTH + i) * WARPS + warp; };
    // Addresses of a lane differ from these by constants, but for the tile's.
    const Real* own = weight + size_t(g) * C + warp * CHUNK + t * 8;
    const Real* given[GROUPS];
#pragma unroll
    for (int n = 0; n < GROUPS; n++)  // columns beyond M are not stored
        given[n] = x + min(n * 8 + g, M - 1) * C + warp * CHUNK + t * 8;
    auto load_weight = [&](int tile, int round, int i) {
        const Real* from = own + size_t(tile) * TILE * C + round * DEPTH * WARPS * CHUNK;
        const int left = rows - tile * TILE - g;
#pragma unroll
        for (int tall = 0; tall < TALL; tall++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = tall * 16 + half * 8;
                w[i][tall][half] = make_uint4(0, 0, 0, 0);
                if ((EVEN || chunk_of(round, i) < CHUNKS) && row < left)
                    w[i][tall][half] = bits_of(load_stream(from + row * C + i * WARPS * CHUNK));
            }
    };
    auto load_x = [&](int round, int i) {
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            b[i][n] = make_uint4(0, 0, 0, 0);
            const Real* from = given[n] + round * DEPTH * WARPS * CHUNK + i * WARPS * CHUNK;
            if (EVEN || chunk_of(round, i) < CHUNKS) b[i][n] = __ldcg(reinterpret_cast<const uint4*>(from));
        }
    };
    int tile = blockIdx.x;
#pragma unroll
    for (int i = 0; i < DEPTH; i++) load_weight(tile, 0, i);
    uint4 gains[DEPTH], shifts[DEPTH];
#pragma unroll
    for (int i = 0; i < DEPTH && NORM != NONE; i++) {
        const int at = chunk_of(0, i) * CHUNK + t * 8;
        gains[i] = shifts[i] = make_uint4(0, 0, 0, 0);
        if (!EVEN && at >= C) continue;
        gains[i] = bits_of(load_vec(gain + at));
        if (NORM == LAYER) shifts[i] = bits_of(load_vec(shift + at));
    }
    if (EARLY) pdl_launch_dependents();  // the next kernel, too, requests its weights while this one waits
    pdl_wait();
    if (!EARLY) pdl_launch_dependents();
#pragma unroll
    for (int i = 0; i < DEPTH; i++) load_x(0, i);

    // What this thread's outputs add, of a tile.
    float2 added[MINE];
    auto load_early = [&](int of) {
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const int o = i * THREADS + threadIdx.x, row = of * TILE + o % (TILE / PER) * PER, m = o / (TILE / PER);
            added[i] = make_float2(0.0f, 0.0f);
            if (o >= OUTPUTS || row >= rows) continue;
            added[i].x = early(m, row);
            if (PER == 2) added[i].y = early(m, row + 1);
        }
    };
    load_early(tile);

    if (NORM != NONE) {
        // A warp's own numbers of each row of x: how many there are is the same for all rows.
        int count = 0;
#pragma unroll
        for (int i = 0; i < DEPTH; i++) count += EVEN || chunk_of(0, i) < CHUNKS ? CHUNK : 0;
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            float sum = 0.0f, squares = 0.0f, mean = 0.0f;
            if (NORM == LAYER) {
#pragma unroll
                for (int i = 0; i < DEPTH; i++)
#pragma unroll
                    for (int j = 0; j < 8; j++) sum += number_at(b[i][n], j);
                sum = sum_of_four(sum);
                mean = sum / max(count, 1);
            }
#pragma unroll
            for (int i = 0; i < DEPTH; i++)
                if (EVEN || chunk_of(0, i) < CHUNKS)
#pragma unroll
                    for (int j = 0; j < 8; j++) {
                        const float from = number_at(b[i][n], j) - mean;
                        squares += from * from;
                    }
            squares = sum_of_four(squares);
            if (t == 0) moments[warp][n * 8 + g] = {sum, squares};
        }
        if (NORM == LAYER) __syncthreads();
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            float mean = 0.0f, scale = 1.0f;  // RMSNorm's factor is applied to the finished sums
            if (NORM == LAYER) {
                float squares = 0.0f;
#pragma unroll 4  // more loads in flight would cost the registers that weights are in
                for (int i = 0; i < WARPS; i++) mean += moments[i][n * 8 + g].sum;
                mean /= C;
#pragma unroll 4
                for (int i = 0; i < WARPS; i++) {
                    const int own = CHUNK * (CHUNKS / WARPS + (i < CHUNKS % WARPS));
                    const Moments found = moments[i][n * 8 + g];
                    const float off = own > 0 ? found.sum / own - mean : 0.0f;
                    squares += found.squares + own * off * off;
                }
                scale = rsqrtf(squares / C + eps);
            }
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                const uint4 given_x = b[i][n];
                auto exact = [&](float v, int j) {
                    if (NORM == RMS) return v * number_at(gains[i], j);
                    return (v - mean) * scale * number_at(gains[i], j) + number_at(shifts[i], j);
                };
                b[i][n] = changed(given_x, exact);
                if (NORM == RMS)
                    lost[i][n] = changed(given_x, [&](float v, int j) { return exact(v, j) - number_at(b[i][n], j); });
            }
        }
    }

    for (int buffer = 0; tile < tiles; tile += gridDim.x, buffer ^= 1) {
        float d[TALL][GROUPS][4] = {};
        for (int round = 0; round < ROUNDS; round++) {
            const bool last = round + 1 == ROUNDS;
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
#pragma unroll
                for (int tall = 0; tall < TALL; tall++) {
                    const uint4 low = w[i][tall][0], high = w[i][tall][1];
#pragma unroll
                    for (int n = 0; n < GROUPS; n++)
#pragma unroll
                        for (int part = 0; part < PARTS; part++) {
                            const uint4 of = part == 0 ? b[i][n] : lost[i][n];
                            mma_m16n8k16<Real>(d[tall][n], {low.x, high.x, low.y, high.y}, {of.x, of.y});
                            mma_m16n8k16<Real>(d[tall][n], {low.z, high.z, low.w, high.w}, {of.z, of.w});
                        }
                }
                load_weight(last ? tile + gridDim.x : tile, last ? 0 : round + 1, i);
                if (ROUNDS > 1) load_x(last ? 0 : round + 1, i);
            }
        }
        auto place = [&](int of_warp, int tall, int n) {
            return sums + (((buffer * WARPS + of_warp) * TALL + tall) * GROUPS + n) * PLANE;
        };
#pragma unroll
        for (int tall = 0; tall < TALL; tall++)
#pragma unroll
            for (int n = 0; n < GROUPS; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) place(warp, tall, n)[(2 * t + e % 2) * PITCH + g + e / 2 * 8] = d[tall][n][e];
        __syncthreads();  // the other buffer is written by warps that have passed the next of these barriers
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const int o = i * THREADS + threadIdx.x, local = o % (TILE / PER) * PER, m = o / (TILE / PER);
            const int row = tile * TILE + local;
            if (o >= OUTPUTS || row >= rows) continue;
            float squares = 0.0f;
            float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 4
            for (int k = 0; k < WARPS; k++) {
                const float* part = place(k, local / 16, m / 8) + m % 8 * PITCH + local % 16;
                sum.x += part[0];
                if (PER == 2) sum.y += part[1];
                if (NORM == RMS) squares += moments[k][m].squares;
            }
            const float scale = NORM == RMS ? rsqrtf(squares / C + eps) : 1.0f;
            store(m, row, make_float2(sum.x * scale + added[i].x, sum.y * scale + added[i].y));
        }
        load_early(tile + gridDim.x);
    }
}

}  // namespace few_columns
