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
[model]
serves = { tensorcore = 1 }
---*/
#include "attention_mma.cuh"

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
        // perhaps never false: with STAGES of 2 only the first tile is requested
        if (tile < tiles) {
            int64_t at = (int64_t)tile * BC * stride_T;
            load_tile<BC>(K + tile % STAGES * BC * ROW, keys + at, stride_T, T - tile * BC);
            load_tile<BC>(V + tile % STAGES * BC * ROW, values + at, stride_T, T - tile * BC);
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
                        if (t2 > t1 || t2 <= t1 - window) s[i][n][x] = -INFINITY;
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
