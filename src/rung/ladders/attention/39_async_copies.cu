/*---
idea   = "Tiles are copied asynchronously: V arrives while the scores are computed, and the next K during the product with V."
expect = "Two memory waits fewer per tile, which matters because one block per multiprocessor cannot hide them. What rung 24 adds: rows of Q and S in different banks, the longest rows first, and two blocks per multiprocessor."
found  = "2 % at b8t1024 in float32 on an H200 (607 to 596 us), 8 % at b4t64, nothing for one text: a tile of 64 x 64 has enough arithmetic between its loads."
from   = "attention/38"
side_experiment = "The study's own steps from rung 23 to 24."
dtypes = ["f32"]
needs  = ["sm >= 80", "scale > 0", "HS % 4 == 0", "q_stride_T % 4 == 0"]
options = ["--use_fast_math"]

# q, k and v are views of one qkv and share their strides
bind = { stride_B = "q_stride_B", stride_NH = "q_stride_NH", stride_T = "q_stride_T" }

[define]
HS = "C // NH"

[[launch]]
kernel = "flash"
grid   = ["ceil_div(T, 64)", "NH", "B"]
block  = [16, 16]
shared = "4 * (3 * 64 * HS + 64 * 64)"
---*/
#include "rung.cuh"

constexpr int BR = 64, BC = 64, NX = 16, NY = 16;  // threads; each has columns NX apart of rows NY apart
constexpr float LOG2_E = 1.4426950408889634f;
constexpr int ROWS = BR / NY, COLS = BC / NX, O_COLS = (HS + NX - 1) / NX;

// sum + a . b
__device__ float dot(float4 a, float4 b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// Over the NX neighbouring lanes that share a row.
__device__ float row_max(float x)
{
    for (int offset = NX / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}
__device__ float row_sum(float x)
{
    for (int offset = NX / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

// Starts copying rows of HS numbers, `row_stride` apart in global memory, into shared memory; zeros beyond the last token.
__device__ void load_tile(float* tile, const float* rows, int64_t row_stride, int count, int tokens)
{
    for (int i = threadIdx.y * NX + threadIdx.x; i < count * HS / 4; i += NX * NY) {
        int r = i / (HS / 4), hs = i % (HS / 4) * 4;
        cp_async_16(&tile[r * HS + hs], rows + (r < tokens ? r * row_stride : 0) + hs, r < tokens);
    }
}

extern "C" __global__ void flash(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
                                 float* __restrict__ out, float* __restrict__ lse, int T, int NH, int stride_B, int stride_NH,
                                 int stride_T, float scale, int causal)
{
    extern __shared__ __align__(16) float shared[];
    float* Q = shared;       // (BR, HS)
    float* K = Q + BR * HS;  // (BC, HS)
    float* V = K + BC * HS;  // (BC, HS)
    float* S = V + BC * HS;  // (BR, BC)
    int tx = threadIdx.x, ty = threadIdx.y, row0 = blockIdx.x * BR, nh = blockIdx.y, b = blockIdx.z;
    int64_t head = (int64_t)b * stride_B + nh * stride_NH;
    float m[ROWS], l[ROWS], shrink[ROWS];  // l counts the columns of this lane alone
    float o[ROWS][O_COLS] = {};            // without the denominator
    const float scale2 = scale * LOG2_E;   // exp(scale x) = 2^(scale2 x)
    for (int i = 0; i < ROWS; i++) {
        m[i] = -INFINITY;
        l[i] = 0.0f;
    }

    load_tile(Q, q + head + (int64_t)row0 * stride_T, stride_T, BR, T - row0);
    load_tile(K, k + head, stride_T, BC, T);
    cp_async_commit();
    int end = causal ? min(T, row0 + BR) : T;  // from there on everything is masked
    for (int key0 = 0; key0 < end; key0 += BC) {
        cp_async_wait<0>();
        __syncthreads();  // K has arrived, V's buffer is free
        load_tile(V, v + head + (int64_t)key0 * stride_T, stride_T, BC, T - key0);
        cp_async_commit();
        float score[ROWS][COLS] = {};
#pragma unroll
        for (int chunk = 0; chunk < HS / 4; chunk++) {
            int hs = 4 * ((chunk + tx) % (HS / 4));  // eight lanes reading 16 bytes each meet all 32 banks
            float4 key[COLS];
#pragma unroll
            for (int j = 0; j < COLS; j++) key[j] = *reinterpret_cast<float4*>(&K[(tx + j * NX) * HS + hs]);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                float4 query = *reinterpret_cast<float4*>(&Q[(ty + i * NY) * HS + hs]);
#pragma unroll
                for (int j = 0; j < COLS; j++) score[i][j] = dot(query, key[j], score[i][j]);
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float largest = m[i], sum = 0.0f;
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                int t1 = row0 + ty + i * NY, t2 = key0 + tx + j * NX;
                if (t2 >= T || (causal && t2 > t1)) score[i][j] = -INFINITY;
                largest = fmaxf(largest, score[i][j]);
            }
            largest = row_max(largest);
            shrink[i] = exp2f((m[i] - largest) * scale2);
            m[i] = largest;
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                float p = exp2f(fmaf(score[i][j], scale2, -largest * scale2));
                S[(ty + i * NY) * BC + tx + j * NX] = p;
                sum += p;
            }
            l[i] = shrink[i] * l[i] + sum;
        }
        cp_async_wait<0>();
        __syncthreads();  // V has arrived, K's buffer is free
        if (int next = key0 + BC; next < end) {
            load_tile(K, k + head + (int64_t)next * stride_T, stride_T, BC, T - next);
            cp_async_commit();
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int j = 0; j < O_COLS; j++) o[i][j] *= shrink[i];
        }
#pragma unroll 4
        for (int c = 0; c < BC; c++) {
            float value[O_COLS];
#pragma unroll
            for (int j = 0; j < O_COLS; j++) value[j] = tx + j * NX < HS ? V[c * HS + tx + j * NX] : 0.0f;
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                float p = S[(ty + i * NY) * BC + c];
#pragma unroll
                for (int j = 0; j < O_COLS; j++) o[i][j] += p * value[j];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int t1 = row0 + ty + i * NY;
        l[i] = row_sum(l[i]);
        if (t1 >= T) continue;
        float* row = out + (((int64_t)b * T + t1) * NH + nh) * HS;
#pragma unroll
        for (int j = 0; j < O_COLS; j++) {
            if (tx + j * NX < HS) row[tx + j * NX] = o[i][j] / l[i];
        }
        if (lse != nullptr && tx == 0) lse[((int64_t)b * NH + nh) * T + t1] = scale * m[i] + logf(l[i]);
    }
}
