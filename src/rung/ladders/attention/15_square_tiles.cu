/*---
idea   = "Tiles of 32 x 32 for a block of 32 x 32 threads: one score per thread, and no thread is idle at a tile's edge."
expect = "Twice the threads hide more latency, and the remainder of 48 / 32 is gone: a few per cent."
found  = "It depends: 4.81 -> 5.02 ms (0.96x) at b8t1024 in f32 on an H200, slower, but 1.19x at b4t64 and 1.49x to 1.67x for one head of 256 to 8192, where few blocks run and more threads in each help. The study: 21.0 -> 19.7 s, 1.07x."
provenance = "fp32 flash attention case study, version 3: blockDim (32, 32), B_c = B_r = 32; 21.0 -> 19.7 s."
dtypes = ["f32"]

buffers.qh = { shape = ["B", "NH", "T", "HS"], dtype = "f32" }
buffers.kh = { shape = ["B", "NH", "T", "HS"], dtype = "f32" }
buffers.vh = { shape = ["B", "NH", "T", "HS"], dtype = "f32" }
# the running maximum and sum of every row, and what its earlier outputs are multiplied by
buffers.m      = { shape = ["B", "NH", "T"], dtype = "f32" }
buffers.l      = { shape = ["B", "NH", "T"], dtype = "f32" }
buffers.shrink = { shape = ["B", "NH", "T"], dtype = "f32" }

[tune]
BR = [32, 16]
BC = 32

[[launch]]
kernel = "contiguous"
grid   = "ceil_div(B * T * C, 256)"
block  = 256

[[launch]]
kernel = "flash"
grid   = ["ceil_div(T, BR)", "NH", "B"]
block  = ["BC", "BR"]
shared = "4 * ((BR + 2 * BC) * HS + BC)"
---*/
#include "rung.cuh"

// qkv (B, T, 3, NH, HS) -> qh, kh, vh (B, NH, T, HS): the copies that a framework calls contiguous()
extern "C" __global__ void contiguous(const float* qkv, float* qh, float* kh, float* vh, int B, int T, int C, int NH)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= B * T * C) return;
    int HS = C / NH, hs = i % HS, t = i / HS % T, nh = i / HS / T % NH, b = i / HS / T / NH;
    const float* token = qkv + ((int64_t)b * T + t) * 3 * C + nh * HS + hs;
    qh[i] = token[0];
    kh[i] = token[C];
    vh[i] = token[2 * C];
}

// A thread has one score of each tile; a warp has one row of them.
extern "C" __global__ void __launch_bounds__(BR* BC)
    flash(const float* qh, const float* kh, const float* vh, float* out, float* lse, float* m, float* l, float* shrink, int T,
          int NH, int HS, float scale, int causal)
{
    __shared__ float S[BR][BC];
    extern __shared__ float shared[];
    int stride = HS + 1;         // of a row of K: the extra word moves each row by one bank
    float* Q = shared;           // (BR, HS)
    float* K = Q + BR * HS;      // (BC, stride)
    float* V = K + BC * stride;  // (BC, HS)
    int tx = threadIdx.x, ty = threadIdx.y, tid = ty * BC + tx;
    int row0 = blockIdx.x * BR, t1 = row0 + ty, nh = blockIdx.y, b = blockIdx.z;
    int64_t head = ((int64_t)b * NH + nh) * T, row = head + t1;
    float* O = out + (((int64_t)b * T + t1) * NH + nh) * HS;

    for (int i = tid; i < BR * HS; i += BR * BC) Q[i] = row0 + i / HS < T ? qh[(head + row0) * HS + i] : 0.0f;
    if (t1 < T) {
        for (int hs = tx; hs < HS; hs += BC) O[hs] = 0.0f;
        if (tx == 0) {
            m[row] = -INFINITY;
            l[row] = 0.0f;
        }
    }
    for (int key0 = 0; key0 < T; key0 += BC) {
        if (causal && key0 >= row0 + BR) break;  // from here on everything is masked
        __syncthreads();
        for (int i = tid; i < BC * HS; i += BR * BC) {
            bool inside = key0 + i / HS < T;
            K[i / HS * stride + i % HS] = inside ? kh[(head + key0) * HS + i] : 0.0f;
            V[i] = inside ? vh[(head + key0) * HS + i] : 0.0f;
        }
        __syncthreads();
        float score = 0.0f;
        for (int hs = 0; hs < HS; hs++) score += Q[ty * HS + hs] * K[tx * stride + hs];
        score = key0 + tx < T && (!causal || key0 + tx <= t1) ? scale * score : -INFINITY;
        S[ty][tx] = score;
        __syncthreads();
        if (tx == 0 && t1 < T) {
            float m_new = m[row], l_new = 0.0f;
            for (int c = 0; c < BC; c++) m_new = fmaxf(m_new, S[ty][c]);
            for (int c = 0; c < BC; c++) {
                S[ty][c] = expf(S[ty][c] - m_new);
                l_new += S[ty][c];
            }
            float kept = expf(m[row] - m_new) * l[row];
            l_new += kept;
            shrink[row] = kept / l_new;
            m[row] = m_new;
            l[row] = l_new;
        }
        __syncthreads();
        if (t1 < T) {
            int seen = min(causal ? t1 + 1 - key0 : BC, BC);  // keys after the diagonal do not change O
            for (int hs = tx; hs < HS; hs += BC) {
                float sum = 0.0f;
                for (int c = 0; c < seen; c++) sum += S[ty][c] / l[row] * V[c * HS + hs];
                O[hs] = shrink[row] * O[hs] + sum;
            }
        }
    }
    if (lse != nullptr && tx == 0 && t1 < T) lse[row] = m[row] + logf(l[row]);
}
