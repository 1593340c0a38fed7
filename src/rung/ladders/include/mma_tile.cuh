// matmul's rung 14 in pieces, for kernels that change the code around its main loop. Read that rung first.
// Needs the macros BM BN BK WM WN STAGES (tile of a block, depth, tile of a warp, stages) and ALIGNED (1 where rows of x and
// weight begin at multiples of 16 bytes). A block has mma_tile::THREADS threads and STAGES * STAGE_BYTES of dynamic shared
// memory.
#pragma once
#include "rung.cuh"

namespace mma_tile {

constexpr int WARPS_N = BN / WN, WARPS = BM / WM * WARPS_N, THREADS = WARPS * WARP_SIZE;
constexpr int ROW_BYTES = BK * sizeof(Real);
constexpr int CHUNKS = ROW_BYTES / 16;  // pieces of 16 bytes in a row of a tile
constexpr int STEPS = ROW_BYTES / 32;   // one mma is 32 bytes deep: 16 halves or 8 floats
constexpr int STAGE_BYTES = (BM + BN) * ROW_BYTES;

using Sums = float[WM / 16][WN / 8][4];

// Where a piece is in a tile. The eight rows that ldmatrix reads together are in eight different groups of banks.
__device__ __forceinline__ int swizzled(int row, int chunk)
{
    const int turn = CHUNKS == 8 ? row : row / 2;  // 128 bytes hold one row of 8 pieces or two of 4
    return row * ROW_BYTES + ((chunk ^ turn) % CHUNKS) * 16;
}

// This thread's part in copying ROWS rows of a matrix to shared memory, BK columns at a time. Rows beyond the matrix
// repeat its last one (their results are never stored); columns beyond it are zeros.
template <int ROWS>
struct TileCopy
{
    static constexpr int COUNT = ROWS * CHUNKS / THREADS, STRIDE = THREADS / CHUNKS;
    static_assert(STRIDE % 8 == 0, "the swizzle repeats every eight rows");

    const Real* source;
    int offset[COUNT];
    int target, c_thread;

    __device__ __forceinline__ TileCopy(const Real* matrix, int r0, int rows, int C)
    {
        const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        target = swizzled(row, chunk);
        c_thread = chunk * VEC;
        aim(matrix, r0, rows, C);
    }

    __device__ __forceinline__ void aim(const Real* matrix, int r0, int rows, int C)
    {
        source = matrix + size_t(r0) * C;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            offset[i] = min(int(threadIdx.x / CHUNKS) + i * STRIDE, rows - 1 - r0) * C + c_thread;
        }
    }

    // Where piece i of this thread is in a tile.
    __device__ __forceinline__ char* place(char* tile, int i) const { return tile + target + i * STRIDE * ROW_BYTES; }

    __device__ __forceinline__ void start(char* tile, int c0, int C) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const Real* from = source + offset[i] + c0;
#if ALIGNED
            cp_async_16(place(tile, i), from, c0 + c_thread < C);
#else
            // Rows may start at any address: elements are copied one by one.
#pragma unroll 1
            for (int j = 0; j < VEC; j++) {
                const bool valid = c0 + c_thread + j < C;
#if defined(RUNG_TF32)
                cp_async_4(place(tile, i) + j * 4, from + j, valid);
#else
                reinterpret_cast<Real*>(place(tile, i))[j] = valid ? from[j] : from_float<Real>(0.0f);
#endif
            }
#endif
        }
    }
};

// Which part of the block's tile is this warp's, and where its lane points ldmatrix: `a_row` and `b_row` are the
// swizzled places of the lane's row and piece at step 0; a step flips bits above them.
struct Place
{
    int lane, warp_m, warp_n, a_row, b_row;

    __device__ __forceinline__ Place()
    {
        const int warp = threadIdx.x / WARP_SIZE;
        lane = threadIdx.x % WARP_SIZE;
        warp_m = warp / WARPS_N * WM;
        warp_n = warp % WARPS_N * WN;
        a_row = swizzled(warp_m + lane % 16, lane / 16);
        b_row = swizzled(warp_n + lane / 16 * 8 + lane % 8, lane / 8 % 2);
    }
};

// What a warp multiplies in one step: WM rows of x and WN rows of weight, 32 bytes deep.
struct Fragments
{
    uint32_t a[WM / 16][4];
    uint32_t b[WN / 16][4];  // two tiles of 8 columns each

    __device__ __forceinline__ void load(const char* stage, const Place& place, int step)
    {
        const char* w_tile = stage + BM * ROW_BYTES;
#pragma unroll
        for (int i = 0; i < WM / 16; i++) ldmatrix_x4(a[i], stage + (place.a_row ^ step * 32) + i * 16 * ROW_BYTES);
#pragma unroll
        for (int j = 0; j < WN / 16; j++) ldmatrix_x4(b[j], w_tile + (place.b_row ^ step * 32) + j * 16 * ROW_BYTES);
#if defined(RUNG_TF32)
#pragma unroll
        for (int r = 0; r < 4; r++) {
#pragma unroll
            for (int i = 0; i < WM / 16; i++) a[i][r] = to_tf32(__uint_as_float(a[i][r]));
#pragma unroll
            for (int j = 0; j < WN / 16; j++) b[j][r] = to_tf32(__uint_as_float(b[j][r]));
        }
#endif
    }
};

__device__ __forceinline__ void multiply(Sums& sum, const Fragments& f)
{
#pragma unroll
    for (int i = 0; i < WM / 16; i++) {
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
            const uint32_t b[2] = {f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]};
#if defined(RUNG_TF32)
            mma_m16n8k8_tf32(sum[i][j], f.a[i], b);
#else
            mma_m16n8k16<Real>(sum[i][j], f.a[i], b);
#endif
        }
    }
}

struct AsItIs
{
    __device__ __forceinline__ void operator()(char*, int) const {}
};

// sum += x · weightᵀ over the depth tiles first ... last - 1. `landed(x_tile, c0)` may transform the pieces that this thread has
// copied, after they have arrived and before any other thread reads them.
template <class Landed = AsItIs>
__device__ __forceinline__ void multiply_tiles(Sums& sum, char* smem, const TileCopy<BM>& x_copy, const TileCopy<BN>& w_copy,
                                               const Place& place, int first, int last, int C, Landed landed = {})
{
    const int tiles = last - first;
    auto start = [&](int tile) {
        char* stage = smem + tile % STAGES * STAGE_BYTES;
        if (tile < tiles) {
            x_copy.start(stage, (first + tile) * BK, C);
            w_copy.start(stage + BM * ROW_BYTES, (first + tile) * BK, C);
        }
        cp_async_commit();  // an empty group when no tile is left, so that the number of groups equals the number of tiles
    };

    for (int tile = 0; tile < STAGES - 1; tile++) start(tile);
    cp_async_wait<STAGES - 2>();
    // perhaps never false: only where the depth is split may a part be empty
    if (tiles > 0) landed(smem, first * BK);
    __syncthreads();

    Fragments fragments[2];
    fragments[0].load(smem, place, 0);
    for (int tile = 0; tile < tiles; tile++) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            char* stage = smem + (tile + (step == STEPS - 1)) % STAGES * STAGE_BYTES;
            if (step == STEPS - 1) {
                // The next tile has arrived, and all warps have read the stage that is refilled next.
                cp_async_wait<STAGES - 2>();
                if (tile + 1 < tiles) landed(stage, (first + tile + 1) * BK);
                __syncthreads();
            }
            fragments[(step + 1) % 2].load(stage, place, (step + 1) % STEPS);
            if (step == 0) start(tile + STAGES - 1);
            multiply(sum, fragments[step % 2]);
        }
    }
}

// visit(row, col, pair): each pair of neighbouring sums of this lane, by its place in the block's tile.
template <class Visit>
__device__ __forceinline__ void for_each_pair(const Sums& sum, const Place& place, Visit visit)
{
#pragma unroll
    for (int i = 0; i < WM / 8; i++) {
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
            const float* s = &sum[i / 2][j][i % 2 * 2];
            visit(place.warp_m + i * 8 + place.lane / 4, place.warp_n + j * 8 + place.lane % 4 * 2, make_float2(s[0], s[1]));
        }
    }
}

// Two neighbours in a row, the second perhaps beyond its end. PAIRED: rows have even lengths, so that one load fetches both.
template <bool PAIRED>
__device__ __forceinline__ float2 load_two(const Real* from, bool second)
{
    if (PAIRED) {
        const Vec<Real, 2> pair = *reinterpret_cast<const Vec<Real, 2>*>(from);
        return make_float2(to_float(pair[0]), to_float(pair[1]));
    }
    return make_float2(to_float(from[0]), to_float(from[second]));
}

// Transposes a 4 x 4 matrix of registers held by four neighbouring lanes, lane t holding row t.
__device__ __forceinline__ void transpose_quad(uint32_t (&v)[4], int lane)
{
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
        const bool upper = lane & bit;
#pragma unroll
        for (int p = 0; p < 4; p++) {
            if (p & bit) continue;
            const uint32_t got = __shfl_xor_sync(ALL_LANES, upper ? v[p] : v[p | bit], bit);
            v[p] = upper ? got : v[p];
            v[p | bit] = upper ? v[p | bit] : got;
        }
    }
}

template <bool VALUE>
struct Known
{
    static constexpr bool value = VALUE;
};

// Stores the block's tile of an M x OC output. `finish(v, row, col, second, paired)` may transform a pair of sums, bias added:
// `second` says whether the pair's second element is inside, `paired` (a type) whether rows of the output have even lengths. It
// is also called beyond the edges, with clamped positions; only stores are guarded, which keeps the code short.
template <class Finish>
__device__ __forceinline__ void store_tile(const Sums& sum, const Place& place, int m0, int n0, int M, int OC, const Real* bias,
                                           Real* out, Finish finish)
{
    constexpr int PIECE = sizeof(Real) == 4 ? 2 : 8;  // elements per store
    if (OC % PIECE == 0) {
#pragma unroll
        for (int j = 0; j < WN / 8; j += 4) {
            const int col = n0 + place.warp_n + j * 8 + place.lane % 4 * 2;
            int inner[4];
            float2 b[4];
#pragma unroll
            for (int p = 0; p < 4; p++) {
                inner[p] = min(col + p * 8, OC - 2);
                b[p] = bias ? load_two<true>(bias + inner[p], true) : make_float2(0.0f, 0.0f);
            }
#pragma unroll
            for (int i = 0; i < WM / 8; i++) {
                const int row = m0 + place.warp_m + i * 8 + place.lane / 4;
                float2 v[4];
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    const float* s = &sum[i / 2][j + p][i % 2 * 2];
                    v[p] = finish(make_float2(s[0] + b[p].x, s[1] + b[p].y), min(row, M - 1), inner[p], true, Known<true>{});
                }
                Real* to = out + size_t(row) * OC + n0 + place.warp_n + j * 8;
#if defined(RUNG_TF32)
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    if (row < M && col + p * 8 < OC) {
                        *reinterpret_cast<float2*>(to + p * 8 + place.lane % 4 * 2) = v[p];
                    }
                }
#else
                // Four lanes hold 32 neighbouring elements in scattered pairs; transposed, each has 16 contiguous bytes.
                uint32_t packed[4];
#pragma unroll
                for (int p = 0; p < 4; p++) packed[p] = pack2<Real>(v[p].x, v[p].y);
                transpose_quad(packed, place.lane);
                if (row < M && n0 + place.warp_n + j * 8 + place.lane % 4 * 8 < OC) {
                    *reinterpret_cast<uint4*>(to + place.lane % 4 * 8) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
                }
#endif
            }
        }
    } else {
        for_each_pair(sum, place, [&](int row, int col, float2 v) {
            row += m0;
            col += n0;
            const int inner = min(col, OC - 1);
            const bool second = inner + 1 < OC;
            if (bias) {
                const float2 b = load_two<false>(bias + inner, second);
                v = make_float2(v.x + b.x, v.y + b.y);
            }
            v = finish(v, min(row, M - 1), inner, second, Known<false>{});
            Real* to = out + size_t(row) * OC + col;
            if (row < M && col < OC) to[0] = from_float<Real>(v.x);
            if (row < M && col + 1 < OC) to[1] = from_float<Real>(v.y);
        });
    }
}

struct Unchanged
{
    template <class Paired>
    __device__ __forceinline__ float2 operator()(float2 v, int, int, bool, Paired) const
    {
        return v;
    }
};

}  // namespace mma_tile
