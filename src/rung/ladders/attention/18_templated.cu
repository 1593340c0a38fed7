/*---
idea   = "Three small changes: head size and tiles are compile-time constants, one division at the end replaces one per product, and pointers are read-only."
expect = "The dot product unrolls, and divisions leave the inner loop: a few per cent, most of it from the division."
found  = "2.52 -> 1.74 ms (1.45x) at b8t1024 in f32 on an H200, 1.25x at b4t64 and 1.39x to 1.51x for one head of 256 to 8192: far more than a few per cent; the study: 17.7 -> 17.3 s, 1.02x of a whole text."
provenance = "fp32 flash attention case study, version 6: 17.7 -> 17.3 s."
from   = "attention/17"
inherit = ["options", "buffers", "tune", "launch"]
dtypes = ["f32"]

[define]
HS = "C // NH"
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

// A thread has one score of each tile, a warp one row. O is kept in `out` without its denominator until the end.
extern "C" __global__ void __launch_bounds__(BR* BC)
    flash(const float* __restrict__ qh, const float* __restrict__ kh, const float* __restrict__ vh, float* __restrict__ out,
          float* __restrict__ lse, int T, int NH, float scale, int causal)
{
    extern __shared__ float shared[];
    constexpr int stride = HS + 1;  // of a row of K: the extra word moves each row by one bank
    __shared__ float S[BR][BC];
    float* Q = shared;           // (BR, HS)
    float* K = Q + BR * HS;      // (BC, stride)
    float* V = K + BC * stride;  // (BC, HS)
    int tx = threadIdx.x, ty = threadIdx.y, tid = ty * BC + tx;
    int row0 = blockIdx.x * BR, t1 = row0 + ty, nh = blockIdx.y, b = blockIdx.z;
    int64_t head = ((int64_t)b * NH + nh) * T;
    float* O = out + (((int64_t)b * T + t1) * NH + nh) * HS;
    float m = -INFINITY, l = 0.0f;  // the same in all lanes

    for (int i = tid; i < BR * HS; i += BR * BC) Q[i] = row0 + i / HS < T ? __ldg(&qh[(head + row0) * HS + i]) : 0.0f;
    if (t1 < T) {
        for (int hs = tx; hs < HS; hs += BC) O[hs] = 0.0f;
    }
    for (int key0 = 0; key0 < T; key0 += BC) {
        if (causal && key0 >= row0 + BR) break;  // from here on everything is masked
        __syncthreads();
        for (int i = tid; i < BC * HS; i += BR * BC) {
            bool inside = key0 + i / HS < T;
            K[i / HS * stride + i % HS] = inside ? __ldg(&kh[(head + key0) * HS + i]) : 0.0f;
            V[i] = inside ? __ldg(&vh[(head + key0) * HS + i]) : 0.0f;
        }
        __syncthreads();
        float score = 0.0f;
#pragma unroll
        for (int hs = 0; hs < HS; hs++) score += Q[ty * HS + hs] * K[tx * stride + hs];
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
    for (int hs = tx; hs < HS; hs += BC) O[hs] /= l;
    if (lse != nullptr && tx == 0) lse[head + t1] = m + logf(l);
}
