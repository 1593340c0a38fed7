/*---
idea   = "Both products on the tensor cores with mma.sync. S is produced in registers, becomes P there, and is the operand of the second product; K and V arrive by cp.async one tile ahead, swizzled for ldmatrix."
expect = "The rate of FlashAttention 2, which works the same way: ten times rung 24 in fp32. mma.sync does not reach the rate of wgmma and TMA, which supply the tensor cores better."
found  = "57.8 us at b8t1024 in bf16 on an H200, 7.52x over rung 24 in f32: 223 TFLOP/s, 28 % of the measured rate, 1.31x over torch's FlashAttention 2 (76.0 us) and 0.83x cuDNN's speed (47.8 us). At b4t64 4.26 us, the fastest, 1.42x the speed of the best library."
provenance = "The paper of FlashAttention 2; layouts of the fragments from the PTX manual."
from   = "attention/24"
dtypes = ["f16", "bf16"]
needs  = ["sm >= 80", "HS % 16 == 0", "HS <= 128", "scale > 0", "q_stride_T % 8 == 0", "MT * BC <= 128"]
options = ["--use_fast_math"]

# q, k and v are views of one qkv and share their strides
bind = { stride_B = "q_stride_B", stride_NH = "q_stride_NH", stride_T = "q_stride_T" }

[define]
HS = "C // NH"
M_TILES = "MT if HS <= 64 else 1"  # O of two would not fit into the registers with S

[tune]
WARPS  = [4, 8]
MT     = [2, 1]  # tiles of 16 rows per warp
BC     = [64, 32, 128]
STAGES = [2, 3]

[[launch]]
kernel = "flash"
grid   = ["B * NH", "ceil_div(T, 16 * WARPS * (MT if HS <= 64 else 1))"]
block  = "32 * WARPS"
shared = "(2 * HS if HS % 64 == 0 or HS == 32 else 2 * HS + 16) * (16 * WARPS * (MT if HS <= 64 else 1) + 2 * STAGES * BC)"
[model]
serves = { tensorcore = 2, flash = 1, prompt = 4 }
---*/
#include "attention_mma.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    flash(const Real* __restrict__ q, const Real* __restrict__ k, const Real* __restrict__ v, Real* __restrict__ out,
          float* __restrict__ lse, int T, int NH, int stride_B, int stride_NH, int stride_T, float scale, int causal)
{
    extern __shared__ __align__(16) unsigned char shared[];
    Real* Q = reinterpret_cast<Real*>(shared);  // (BR, ROW)
    Real* K = Q + BR * ROW;                     // (STAGES, BC, ROW)
    Real* V = K + STAGES * BC * ROW;            // (STAGES, BC, ROW)
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int b = blockIdx.x / NH, nh = blockIdx.x % NH;
    int row0 = (gridDim.y - 1 - blockIdx.y) * BR;  // the rows with the most keys first
    int warp_row0 = row0 + warp * 16 * M_TILES;
    int64_t head = (int64_t)b * stride_B + nh * stride_NH;
    const Real *keys = k + head, *values = v + head;
    int tiles = ceil_div(causal ? min(T, row0 + BR) : T, BC);
    float scale2 = scale * LOG2_E;  // exp(scale x) = 2^(scale2 x)

    load_tile<BR>(Q, q + head + (int64_t)row0 * stride_T, stride_T, T - row0);
    cp_async_commit();
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        // perhaps never false: with STAGES of 2 only the first tile is requested
        if (stage < tiles) {
            int64_t at = (int64_t)stage * BC * stride_T;
            load_tile<BC>(K + stage * BC * ROW, keys + at, stride_T, T - stage * BC);
            load_tile<BC>(V + stage * BC * ROW, values + at, stride_T, T - stage * BC);
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

    for (int tile = 0; tile < tiles; tile++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this tile has arrived, and every warp has read the one before
        int next = tile + STAGES - 1, key0 = tile * BC;
        if (next < tiles) {
            int64_t at = (int64_t)next * BC * stride_T;
            load_tile<BC>(K + next % STAGES * BC * ROW, keys + at, stride_T, T - next * BC);
            load_tile<BC>(V + next % STAGES * BC * ROW, values + at, stride_T, T - next * BC);
        }
        cp_async_commit();
        if (causal && key0 >= warp_row0 + 16 * M_TILES) continue;  // all masked for this warp
        const Real* K_tile = K + tile % STAGES * BC * ROW;
        const Real* V_tile = V + tile % STAGES * BC * ROW;

        Scores s = {};
        multiply_scores(s, query, K_tile);
        if (key0 + BC > T || (causal && key0 + BC - 1 > warp_row0)) {  // this tile is partly masked
#pragma unroll
            for (int i = 0; i < M_TILES; i++) {
#pragma unroll
                for (int n = 0; n < BC / 8; n++) {
#pragma unroll
                    for (int x = 0; x < 4; x++) {
                        int t1 = warp_row0 + i * 16 + lane / 4 + x / 2 * 8, t2 = key0 + n * 8 + lane % 4 * 2 + x % 2;
                        if (t2 >= T || (causal && t2 > t1)) s[i][n][x] = -INFINITY;
                    }
                }
            }
        }
        weigh_scores<true>(s, o, l, m, scale2);
#pragma unroll
        for (int kk = 0; kk < BC / 16; kk++) {
            uint32_t p[M_TILES][4];
            pack_weights(p, s, kk);
            multiply_values(o, p, V_tile, kk, lane);
        }
    }
    store_rows(o, l, m, out, lse, b, nh, warp_row0, T, NH, scale);
}
