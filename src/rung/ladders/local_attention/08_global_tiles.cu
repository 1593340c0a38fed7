/*---
idea   = "The tiles of the global keys come before those of the window; of their other keys a mask keeps those in the window."
expect = "One or two more tiles per block of queries, for any T: rung 3's time plus that of a tile."
found  = "As expected: 199 against 157 us with a window alone at b8t1024 in float32 on an H200, one more tile for the five that a block of queries has."
provenance = "The inside of local_attention/3; the first keys as in Longformer."
from   = "local_attention/3"
inherit = ["options", "bind", "define", "tune", "launch"]
dtypes = ["f32"]
needs  = ["sm >= 80", "window >= 1", "globals >= 0", "HS % 4 == 0", "scale > 0", "q_stride_T % 4 == 0"]

# q, k and v are views of one qkv and share their strides

[[launch]]
kernel = "local_attention"
[model]
serves = { tiled = "5 if globals else 0" }
---*/
#include "attention_fma.cuh"

extern "C" __global__ void __launch_bounds__(NX* NY, BLOCKS)
    local_attention(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
                    float* __restrict__ out, float* __restrict__ lse, int T, int NH, int stride_B, int stride_NH, int stride_T,
                    int window, int globals, float scale)
{
    extern __shared__ __align__(16) float shared[];
    float* Q = shared;             // (BR, Q_STRIDE)
    float* K = Q + BR * Q_STRIDE;  // (BC, HS), rotated
    float* V = K + BC * HS;        // (BC, HS)
    float* P = V + BC * HS;        // (BR, P_STRIDE)
    int tx = threadIdx.x, ty = threadIdx.y, b = blockIdx.x / NH, nh = blockIdx.x % NH;
    int row0 = blockIdx.y * BR;
    int64_t head = (int64_t)b * stride_B + nh * stride_NH;
    const float *keys = k + head, *values = v + head;
    // The keys that this block sees: from the first row's oldest, in whole tiles, to the last row's own.
    int begin = max(0, row0 - window + 1) / BC * BC, end = min(T, row0 + BR);
    // Tiles of the global keys before those; tiles are numbered in this order.
    int before = min(ceil_div(min(globals, begin), BC), begin / BC), tiles = before + ceil_div(end - begin, BC);
    auto key_of = [&](int tile) { return tile < before ? tile * BC : begin + (tile - before) * BC; };
    float scale2 = scale * LOG2_E;  // exp(scale x) = 2^(scale2 x)

    PerRow m, l = {};
    Output o = {};
#pragma unroll
    for (int i = 0; i < TM; i++) m[i] = -INFINITY;

    load_tile<BR, false>(Q, Q_STRIDE, q + head + (int64_t)row0 * stride_T, stride_T, T - row0);
    load_tile<BC, true>(K, HS, keys + (int64_t)key_of(0) * stride_T, stride_T, T - key_of(0));
    cp_async_commit();
    for (int tile = 0; tile < tiles; tile++) {
        int key0 = key_of(tile);
        cp_async_wait<0>();
        __syncthreads();  // K has arrived, V's buffer is free
        load_tile<BC, false>(V, HS, values + (int64_t)key0 * stride_T, stride_T, T - key0);
        cp_async_commit();

        Scores s = {};
#pragma unroll DEPTH
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            Vec<float, 4> key[TN];
            unsigned slot = (unsigned)(chunk + tx) % CHUNKS;
#pragma unroll
            for (int j = 0; j < TN; j++) key[j] = load_vec(&K[(tx + j * NX) * HS + 4 * slot]);
#pragma unroll
            for (int i = 0; i < TM; i++) {
                Vec<float, 4> query = load_vec(&Q[(ty + i * NY) * Q_STRIDE + 4 * chunk]);
#pragma unroll
                for (int j = 0; j < TN; j++) {
#pragma unroll
                    for (int x = 0; x < 4; x++) s[i][j] = fmaf(query[x], key[j][x], s[i][j]);
                }
            }
        }
        if (key0 + BC > row0 || key0 < row0 + BR - window) {  // this tile is partly outside the window
#pragma unroll
            for (int i = 0; i < TM; i++) {
#pragma unroll
                for (int j = 0; j < TN; j++) {
                    int t1 = row0 + ty + i * NY, t2 = key0 + tx + j * NX;
                    if (t2 > t1 || (t2 <= t1 - window && t2 >= globals)) s[i][j] = -INFINITY;
                }
            }
        }
        weigh_scores<false>(s, P, o, l, m, scale2);
        cp_async_wait<0>();
        __syncthreads();  // V has arrived, K's buffer is free
        if (tile + 1 < tiles) {
            int next = key_of(tile + 1);
            load_tile<BC, true>(K, HS, keys + (int64_t)next * stride_T, stride_T, T - next);
            cp_async_commit();
        }

#pragma unroll DEPTH
        for (int c = 0; c < BC; c += 4) {
            Vec<float, 4> p[TM];
#pragma unroll
            for (int i = 0; i < TM; i++) p[i] = load_vec(&P[(ty + i * NY) * P_STRIDE + c]);
#pragma unroll
            for (int x = 0; x < 4; x++) {
#pragma unroll
                for (int j = 0; j < O_CHUNKS; j++) {
                    int chunk = tx + j * NX;
                    if (CHUNKS % NX != 0 && chunk >= CHUNKS) continue;
                    Vec<float, 4> value = load_vec(&V[(c + x) * HS + 4 * chunk]);
#pragma unroll
                    for (int i = 0; i < TM; i++) {
#pragma unroll
                        for (int y = 0; y < 4; y++) o[i][j][y] = fmaf(p[i][x], value[y], o[i][j][y]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TM; i++) {
#pragma unroll
        for (int offset = NX / 2; offset > 0; offset /= 2) l[i] += __shfl_xor_sync(ALL_LANES, l[i], offset);
        int t1 = row0 + ty + i * NY;
        if (t1 >= T) continue;
        float* row = out + (((int64_t)b * T + t1) * NH + nh) * HS;
#pragma unroll
        for (int j = 0; j < O_CHUNKS; j++) {
            int chunk = tx + j * NX;
            if (chunk >= CHUNKS) continue;
            Vec<float, 4> x;
#pragma unroll
            for (int y = 0; y < 4; y++) x[y] = o[i][j][y] / l[i];
            store_vec(row + 4 * chunk, x);
        }
        if (lse != nullptr && tx == 0) lse[((int64_t)b * NH + nh) * T + t1] = scale * m[i] + logf(l[i]);
    }
}
