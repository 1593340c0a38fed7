/*---
idea   = "The same on the tensor cores: every warp takes the tiles of the global keys, and skips tiles of the window that only other warps' rows see."
expect = "Rung 4's time plus one tile per block of queries."
found  = "As expected: 39.6 against 33.7 us with a window alone at b8t1024 in bf16 on an H200."
provenance = "The inside of local_attention/4; the first keys as in Longformer."
from   = "local_attention/4"
inherit = ["options", "bind", "define", "tune", "launch"]
dtypes = ["f16", "bf16"]
needs  = ["sm >= 80", "window >= 1", "globals >= 0", "HS % 16 == 0", "HS <= 128", "scale > 0", "q_stride_T % 8 == 0", "MT * BC <= 128"]

# q, k and v are views of one qkv and share their strides

[[launch]]
kernel = "local_attention"
[model]
serves = { tiled = "4 if globals else 0" }
---*/
#include "attention_mma.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    local_attention(const Real* __restrict__ q, const Real* __restrict__ k, const Real* __restrict__ v, Real* __restrict__ out,
                    float* __restrict__ lse, int T, int NH, int stride_B, int stride_NH, int stride_T, int window, int globals,
                    float scale)
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
    // Before them those of the global keys. Tiles are numbered in this order, from 0 on.
    int before = min(ceil_div(globals, BC), first), count = before + tiles - first;
    auto tile_of = [&](int number) { return number < before ? number : first + number - before; };
    float scale2 = scale * LOG2_E;  // exp(scale x) = 2^(scale2 x)

    load_tile<BR>(Q, q + head + (int64_t)row0 * stride_T, stride_T, T - row0);
    cp_async_commit();
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        // perhaps never false: with STAGES of 2 only the first tile is requested
        if (stage < count) {
            int tile = tile_of(stage);
            int64_t at = (int64_t)tile * BC * stride_T;
            load_tile<BC>(K + stage * BC * ROW, keys + at, stride_T, T - tile * BC);
            load_tile<BC>(V + stage * BC * ROW, values + at, stride_T, T - tile * BC);
        }
        cp_async_commit();
    }
    cp_async_wait<STAGES - 1>();
    __syncthreads();
    Queries query;
    load_queries(query, Q);
    Output o = {};
    PerRow l = {}, m;
#pragma unroll
    for (int i = 0; i < M_TILES; i++) m[i][0] = m[i][1] = -INFINITY;

    for (int number = 0; number < count; number++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this tile has arrived, and every warp has read the one before
        int later = number + STAGES - 1, key0 = tile_of(number) * BC;
        if (later < count) {
            int next = tile_of(later);
            int64_t at = (int64_t)next * BC * stride_T;
            load_tile<BC>(K + later % STAGES * BC * ROW, keys + at, stride_T, T - next * BC);
            load_tile<BC>(V + later % STAGES * BC * ROW, values + at, stride_T, T - next * BC);
        }
        cp_async_commit();
        // This warp's rows attend to no key of this tile.
        // perhaps never true: one warp per block needs every tile of its block
        if (key0 >= warp_row0 + 16 * M_TILES || (key0 + BC <= warp_row0 - window + 1 && key0 >= globals)) continue;
        const Real* K_tile = K + number % STAGES * BC * ROW;
        const Real* V_tile = V + number % STAGES * BC * ROW;

        Scores s = {};
        multiply_scores(s, query, K_tile);
        if (key0 + BC - 1 > warp_row0 || key0 < warp_row0 + 16 * M_TILES - window) {  // this tile is partly outside the window
#pragma unroll
            for (int i = 0; i < M_TILES; i++) {
#pragma unroll
                for (int n = 0; n < BC / 8; n++) {
#pragma unroll
                    for (int x = 0; x < 4; x++) {
                        int t1 = warp_row0 + i * 16 + lane / 4 + x / 2 * 8, t2 = key0 + n * 8 + lane % 4 * 2 + x % 2;
                        if (t2 > t1 || (t2 <= t1 - window && t2 >= globals)) s[i][n][x] = -INFINITY;
                    }
                }
            }
        }
        weigh_scores<false>(s, o, l, m, scale2);
#pragma unroll
        for (int kk = 0; kk < BC / 16; kk++) {
            uint32_t p[M_TILES][4];
            pack_weights(p, s, kk);
            multiply_values(o, p, V_tile, kk, lane);
        }
    }
    store_rows(o, l, m, out, lse, b, nh, warp_row0, T, NH, scale);
}
