/*---
idea   = "The same loop over the window's tiles on the tensor cores; a warp also skips tiles that only other warps' rows see."
expect = "For T much larger than the window the time grows linearly with T: at T 8192 and window 128 a tenth of the same kernel's full attention."
found  = "On an H200 4.34 us at b4t64 and 32.1 us at b8t1024 in bf16, 11.0x and 106x over rung 2, 4.80x and 10.1x the speed of torch's memory-efficient attention; 37 % of the measured bandwidth at b8t1024. T 8192 was not timed, so the expectation there is open; at T 1024 full attention by the same kernel takes 57.8 us (attention/27, another run)."
provenance = "The inside of attention/27_tensor_cores."
from   = "attention/27"
inherit = ["options", "bind", "define", "tune", "launch"]
dtypes = ["f16", "bf16"]
needs  = ["sm >= 80", "window >= 1", "globals == 0", "HS % 16 == 0", "HS <= 128", "scale > 0", "q_stride_T % 8 == 0", "MT * BC <= 128"]

# q, k and v are views of one qkv and share their strides

[[launch]]
kernel = "local_attention"
---*/
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

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    local_attention(const Real* __restrict__ q, const Real* __restrict__ k, const Real* __restrict__ v, Real* __restrict__ out,
                    float* __restrict__ lse, int T, int NH, int stride_B, int stride_NH, int stride_T, int window, float scale)
{
    extern __shared__ __align__(16) unsigned char shared[];
    Real* Q = reinterpret_cast<Real*>(shared);  // (BR, ROW)
    Real* K = Q + BR * ROW;                     // (STAGES, BC, ROW)
    Real* V = K + STAGES * BC * ROW;            // (STAGES, BC, ROW)
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int b = blockIdx.x / NH, nh = blockIdx.x % NH;
    int row0 = blockIdx.y * BR;
    int warp_row0 = row0 + warp * 16 * M_TILES;
    int64_t head = (int64_t)b * stride_B + nh * stride_NH;
    const Real *keys = k + head, *values = v + head;
    // The tiles of keys that this block sees: from the first row's oldest key to the last row's own.
    int first = max(0, row0 - window + 1) / BC, tiles = ceil_div(min(T, row0 + BR), BC);
    float scale2 = scale * LOG2_E;  // exp(scale x) = 2^(scale2 x)

    load_tile<BR>(Q, q + head + (int64_t)row0 * stride_T, stride_T, T - row0);
    cp_async_commit();
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        int tile = first + stage;
        // perhaps never false: with STAGES of 2 only the first tile is asked for
        if (tile < tiles) {
            int64_t at = (int64_t)tile * BC * stride_T;
            load_tile<BC>(K + tile % STAGES * BC * ROW, keys + at, stride_T, T - tile * BC);
            load_tile<BC>(V + tile % STAGES * BC * ROW, values + at, stride_T, T - tile * BC);
        }
        cp_async_commit();
    }
    cp_async_wait<STAGES - 1>();
    __syncthreads();
    uint32_t query[M_TILES][HS / 16][4];
#pragma unroll
    for (int i = 0; i < M_TILES; i++) {
#pragma unroll
        for (int kk = 0; kk < HS / 16; kk++) {
            ldmatrix_x4(query[i][kk], Q + chunk_at((warp * M_TILES + i) * 16 + lane % 16, 2 * kk + lane / 16));
        }
    }

    // Of each 16 x 8 tile a lane has rows lane / 4 and lane / 4 + 8, columns 2 * (lane % 4) and the next. l counts
    // those columns alone; the four lanes of a row are added at the end.
    float o[M_TILES][HS / 8][4] = {}, l[M_TILES][2] = {}, m[M_TILES][2];
#pragma unroll
    for (int i = 0; i < M_TILES; i++) m[i][0] = m[i][1] = -INFINITY;

    // never skipped: a row has its own key
    for (int tile = first; tile < tiles; tile++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this tile has arrived, and every warp has read the one before
        int next = tile + STAGES - 1, key0 = tile * BC;
        if (next < tiles) {
            int64_t at = (int64_t)next * BC * stride_T;
            load_tile<BC>(K + next % STAGES * BC * ROW, keys + at, stride_T, T - next * BC);
            load_tile<BC>(V + next % STAGES * BC * ROW, values + at, stride_T, T - next * BC);
        }
        cp_async_commit();
        // No key of this tile is in the window of this warp's rows.
        // perhaps never true: one warp per block needs every tile of its block
        if (key0 >= warp_row0 + 16 * M_TILES || key0 + BC <= warp_row0 - window + 1) continue;
        const Real* K_tile = K + tile % STAGES * BC * ROW;
        const Real* V_tile = V + tile % STAGES * BC * ROW;

        float s[M_TILES][BC / 8][4] = {};
#pragma unroll
        for (int kk = 0; kk < HS / 16; kk++) {
#pragma unroll
            for (int n = 0; n < BC / 16; n++) {
                uint32_t key[4];
                ldmatrix_x4(key, K_tile + chunk_at(n * 16 + lane / 16 * 8 + lane % 8, 2 * kk + lane / 8 % 2));
#pragma unroll
                for (int i = 0; i < M_TILES; i++) {
                    mma_m16n8k16<Real>(s[i][2 * n], query[i][kk], {key[0], key[1]});
                    mma_m16n8k16<Real>(s[i][2 * n + 1], query[i][kk], {key[2], key[3]});
                }
            }
        }
        if (key0 + BC - 1 > warp_row0 || key0 < warp_row0 + 16 * M_TILES - window) {  // this tile is partly outside the window
#pragma unroll
            for (int i = 0; i < M_TILES; i++) {
#pragma unroll
                for (int n = 0; n < BC / 8; n++) {
#pragma unroll
                    for (int x = 0; x < 4; x++) {
                        int t1 = warp_row0 + i * 16 + lane / 4 + x / 2 * 8, t2 = key0 + n * 8 + lane % 4 * 2 + x % 2;
                        if (t2 > t1 || t2 <= t1 - window) s[i][n][x] = -INFINITY;
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < M_TILES; i++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {  // rows lane / 4 and lane / 4 + 8
                float largest = m[i][h];
#pragma unroll
                for (int n = 0; n < BC / 8; n++) largest = fmaxf(largest, fmaxf(s[i][n][2 * h], s[i][n][2 * h + 1]));
                largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
                largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
                float from = largest == -INFINITY ? 0.0f : largest;  // a row may see no key of its first tile
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
#pragma unroll
        for (int kk = 0; kk < BC / 16; kk++) {
            uint32_t p[M_TILES][4];  // two neighbouring tiles of S have the layout of one operand
#pragma unroll
            for (int i = 0; i < M_TILES; i++) {
#pragma unroll
                for (int x = 0; x < 4; x++) {
                    const float* pair = &s[i][2 * kk + x / 2][x % 2 * 2];
                    p[i][x] = pack2<Real>(pair[0], pair[1]);
                }
            }
#pragma unroll
            for (int n = 0; n < HS / 16; n++) {
                uint32_t value[4];
                ldmatrix_x4_trans(value, V_tile + chunk_at(kk * 16 + lane % 16, 2 * n + lane / 16));
#pragma unroll
                for (int i = 0; i < M_TILES; i++) {
                    mma_m16n8k16<Real>(o[i][2 * n], p[i], {value[0], value[1]});
                    mma_m16n8k16<Real>(o[i][2 * n + 1], p[i], {value[2], value[3]});
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < M_TILES; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            l[i][h] += __shfl_xor_sync(ALL_LANES, l[i][h], 1);
            l[i][h] += __shfl_xor_sync(ALL_LANES, l[i][h], 2);
            int t1 = warp_row0 + i * 16 + lane / 4 + h * 8;
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
