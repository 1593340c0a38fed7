/*---
idea   = "float4 wherever elements are contiguous: loading tiles, dot products, storing results. K's padding grows to 16 bytes to keep its rows aligned."
expect = "A quarter of the load instructions, but the same bytes: little gain, unless issuing loads was the limit."
found  = "1.74 -> 1.72 ms (1.01x) at b8t1024 in f32 on an H200, 1.02x at b4t64, a tie for one head from 1024 to 8192: next to nothing, as expected. The study, 17.3 -> 17.2 s, calls it negligible too."
provenance = "fp32 flash attention case study, version 7: 17.3 -> 17.2 s, 'negligible'."
from   = "attention/18"
inherit = ["options", "buffers", "define", "tune", "launch"]
dtypes = ["f32"]
needs  = "HS % 4 == 0"

[[launch]]
kernel = "contiguous"

[[launch]]
kernel = "flash"
shared = "4 * ((BR + 2 * BC) * HS + 4 * BC)"
---*/
#include "rung.cuh"

// qkv (B, T, 3, NH, HS) -> qh, kh, vh (B, NH, T, HS): the copies that a framework calls contiguous()
extern "C" __global__ void contiguous(const float* qkv, float* qh, float* kh, float* vh, int B, int T, int C, int NH)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= B * T * C) return;
    int hs = i % HS, t = i / HS % T, nh = i / HS / T % NH, b = i / HS / T / NH;
    const float* token = qkv + ((int64_t)b * T + t) * 3 * C + nh * HS + hs;
    qh[i] = token[0];
    kh[i] = token[C];
    vh[i] = token[2 * C];
}

// sum + a . b
__device__ float dot(float4 a, float4 b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// Rows of HS numbers from global to shared memory, 16 bytes at a time; zeros beyond the last token.
__device__ void load_tile(float* tile, int stride, const float* rows, int count, int tokens)
{
    for (int i = threadIdx.y * BC + threadIdx.x; i < count * HS / 4; i += BR * BC) {
        int r = i / (HS / 4), hs = i % (HS / 4) * 4;
        float4 x = r < tokens ? *reinterpret_cast<const float4*>(rows + (int64_t)r * HS + hs) : float4{};
        *reinterpret_cast<float4*>(&tile[r * stride + hs]) = x;
    }
}

// A thread has one score of each tile, a warp one row. O is kept in `out` without its denominator until the end.
extern "C" __global__ void __launch_bounds__(BR* BC)
    flash(const float* __restrict__ qh, const float* __restrict__ kh, const float* __restrict__ vh, float* __restrict__ out,
          float* __restrict__ lse, int T, int NH, float scale, int causal)
{
    extern __shared__ __align__(16) float shared[];
    constexpr int stride = HS + 4;  // of a row of K: eight lanes reading 16 bytes each then meet all 32 banks
    __shared__ float S[BR][BC];
    float* Q = shared;           // (BR, HS)
    float* K = Q + BR * HS;      // (BC, stride)
    float* V = K + BC * stride;  // (BC, HS)
    int tx = threadIdx.x, ty = threadIdx.y;
    int row0 = blockIdx.x * BR, t1 = row0 + ty, nh = blockIdx.y, b = blockIdx.z;
    int64_t head = ((int64_t)b * NH + nh) * T;
    float* O = out + (((int64_t)b * T + t1) * NH + nh) * HS;
    float m = -INFINITY, l = 0.0f;  // the same in all lanes

    load_tile(Q, HS, qh + (head + row0) * HS, BR, T - row0);
    if (t1 < T) {
        for (int hs = tx; hs < HS; hs += BC) O[hs] = 0.0f;
    }
    for (int key0 = 0; key0 < T; key0 += BC) {
        if (causal && key0 >= row0 + BR) break;  // from here on everything is masked
        __syncthreads();
        load_tile(K, stride, kh + (head + key0) * HS, BC, T - key0);
        load_tile(V, HS, vh + (head + key0) * HS, BC, T - key0);
        __syncthreads();
        float score = 0.0f;
#pragma unroll
        for (int hs = 0; hs < HS; hs += 4) {
            float4 query = *reinterpret_cast<float4*>(&Q[ty * HS + hs]);
            score = dot(query, *reinterpret_cast<float4*>(&K[tx * stride + hs]), score);
        }
        score = key0 + tx < T && (!causal || key0 + tx <= t1) ? scale * score : -INFINITY;
        float m_new = fmaxf(m, warp_max(score));
        float p = expf(score - m_new), shrink = expf(m - m_new);
        m = m_new;
        l = shrink * l + warp_sum(p);
        S[ty][tx] = p;
        __syncwarp();
        if (t1 < T) {
            for (int hs = tx; hs < HS; hs += BC) {
                float sum = 0.0f;
#pragma unroll
                for (int c = 0; c < BC; c++) sum += S[ty][c] * V[c * HS + hs];
                O[hs] = shrink * O[hs] + sum;
            }
        }
    }
    if (t1 >= T) return;
    __syncwarp();
    float4* row = reinterpret_cast<float4*>(O);
    for (int i = tx; i < HS / 4; i += BC) {
        float4 o = row[i];
        row[i] = make_float4(o.x / l, o.y / l, o.z / l, o.w / l);
    }
    if (lse != nullptr && tx == 0) lse[head + t1] = m + logf(l);
}
