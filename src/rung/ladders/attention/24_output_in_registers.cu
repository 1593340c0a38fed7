/*---
idea   = "O moves into registers, and K is rotated instead of padded: the shared memory that this frees holds tiles of 64 x 64, and a thread holds 4 x 4 values of S and of O."
expect = "Sixteen multiplications for eight values read, twice the ratio of rung 23: shared-memory loads and multiplications are balanced, at half of the fp32 peak or better."
found  = "920 -> 435 us (2.12x) at b8t1024 in f32 on an H200: 59 % of the measured rate, and 1.14x the speed of torch's memory-efficient attention, which the study's version 12 only matched. One head has at most 128 tiles for 132 multiprocessors, and the longest determines the time: cuBLAS with the scores in memory is faster there (24.md)."
provenance = "fp32 flash attention case study, version 12: blockDim (16, 16), tiles (64, 64), register tile (4, 4); 14.7 -> 14.3 s, level with torch's memory-efficient attention. The asynchronous copies and the order of the blocks are ours."
dtypes = ["f32"]
needs  = ["sm >= 80", "HS % 4 == 0", "scale > 0", "q_stride_T % 4 == 0"]
options = ["--use_fast_math"]

# q, k and v are views of one qkv and share their strides
bind = { stride_B = "q_stride_B", stride_NH = "q_stride_NH", stride_T = "q_stride_T" }

[define]
HS = "C // NH"

[tune]
BR = [64, 128]
BC = [64, 32]
TM = [4, 8]
TN = [4, 8]
BLOCKS = [2, 3, 1]  # on a multiprocessor at once, for the compiler to fit its registers to

[[launch]]
kernel = "flash"
grid   = ["B * NH", "ceil_div(T, BR)"]
block  = ["BC // TN", "BR // TM"]
shared = "4 * (BR * (HS + 4) + 2 * BC * HS + BR * (BC + BC // TN))"
[model]
serves = { flash = 2, prompt = "4 if rows <= 256 else 6" }
---*/
#include "attention_fma.cuh"

extern "C" __global__ void __launch_bounds__(NX* NY, BLOCKS)
    flash(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ out,
          float* __restrict__ lse, int T, int NH, int stride_B, int stride_NH, int stride_T, float scale, int causal)
{
    extern __shared__ __align__(16) float shared[];
    float* Q = shared;             // (BR, Q_STRIDE)
    float* K = Q + BR * Q_STRIDE;  // (BC, HS), rotated
    float* V = K + BC * HS;        // (BC, HS)
    float* P = V + BC * HS;        // (BR, P_STRIDE)
    int tx = threadIdx.x, ty = threadIdx.y, b = blockIdx.x / NH, nh = blockIdx.x % NH;
    int row0 = (gridDim.y - 1 - blockIdx.y) * BR;  // the rows with the most keys first
    int64_t head = (int64_t)b * stride_B + nh * stride_NH;
    const float *keys = k + head, *values = v + head;
    int end = causal ? min(T, row0 + BR) : T;  // end of the keys that this block sees
    float scale2 = scale * LOG2_E;             // exp(scale x) = 2^(scale2 x)

    PerRow m, l = {};
    Output o = {};
#pragma unroll
    for (int i = 0; i < TM; i++) m[i] = -INFINITY;

    load_tile<BR, false>(Q, Q_STRIDE, q + head + (int64_t)row0 * stride_T, stride_T, T - row0);
    load_tile<BC, true>(K, HS, keys, stride_T, T);
    cp_async_commit();
    for (int key0 = 0; key0 < end; key0 += BC) {
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
        if (key0 + BC > T || (causal && key0 + BC > row0)) {  // this tile is partly masked
#pragma unroll
            for (int i = 0; i < TM; i++) {
#pragma unroll
                for (int j = 0; j < TN; j++) {
                    int t1 = row0 + ty + i * NY, t2 = key0 + tx + j * NX;
                    if (t2 >= T || (causal && t2 > t1)) s[i][j] = -INFINITY;
                }
            }
        }
        weigh_scores<true>(s, P, o, l, m, scale2);
        cp_async_wait<0>();
        __syncthreads();  // V has arrived, K's buffer is free
        if (key0 + BC < end) {
            int next = key0 + BC;
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
