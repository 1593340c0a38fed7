/*---
idea   = "Flash attention: the softmax is built up tile by tile with a running maximum m and sum l, so that the T x T scores never leave the chip."
expect = "Memory traffic falls from T * T to T * HS numbers per head. A naive implementation loses the gain again: one output per thread, O in global memory, and 32 lanes reading one column of K from a single bank."
found  = "The best algorithm so far, and slower than every GPU rung before it except 2 and 6: 18.9 ms at b8t1024 in f32 on an H200, 12.6x the time of torch's naive attention, which keeps the scores in memory. The profiler counts 7.8 wavefronts per shared load and 35.6 million bank conflicts in 527 us (13.md)."
provenance = "fp32 flash attention case study, version 1: blockDim (32, 16), B_c = B_r = 48; 30.6 s where torch's naive attention took 15.3 s, on a GTX 1660 Super."
from   = "attention/12"
rewrite = "The row of scores is gone, and the order of the work changes with it: maximum, sum and output are accumulated together, tile by tile, so no loop of the parent remains."
dtypes = ["f32"]

buffers.qh = { shape = ["B", "NH", "T", "HS"], dtype = "f32" }
buffers.kh = { shape = ["B", "NH", "T", "HS"], dtype = "f32" }
buffers.vh = { shape = ["B", "NH", "T", "HS"], dtype = "f32" }
# the running maximum and sum of every row, and what its earlier outputs are multiplied by
buffers.m      = { shape = ["B", "NH", "T"], dtype = "f32" }
buffers.l      = { shape = ["B", "NH", "T"], dtype = "f32" }
buffers.shrink = { shape = ["B", "NH", "T"], dtype = "f32" }

[tune]
BR = [48, 64, 32]
BC = [48, 64, 32]

[[launch]]
kernel = "contiguous"
grid   = "ceil_div(B * T * C, 256)"
block  = 256

[[launch]]
kernel = "flash"
grid   = ["ceil_div(T, BR)", "NH", "B"]
block  = [32, 16]
shared = "4 * ((BR + 2 * BC) * HS + BR * BC)"
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

// One block has Br queries of one head and goes over the keys Bc at a time. O, m and l live in global memory, O always
// divided by the l of the moment, as in the paper's first version.
extern "C" __global__ void flash(const float* qh, const float* kh, const float* vh, float* out, float* lse, float* m, float* l,
                                 float* shrink, int T, int NH, int HS, float scale, int causal)
{
    const int Br = BR, Bc = BC;
    extern __shared__ float shared[];
    float* Q = shared;       // (Br, HS)
    float* K = Q + Br * HS;  // (Bc, HS)
    float* V = K + Bc * HS;  // (Bc, HS)
    float* S = V + Bc * HS;  // (Br, Bc)
    int tx = threadIdx.x, ty = threadIdx.y, tid = ty * blockDim.x + tx, threads = blockDim.x * blockDim.y;
    int row0 = blockIdx.x * Br, nh = blockIdx.y, b = blockIdx.z, rows = min(Br, T - row0);
    int64_t head = ((int64_t)b * NH + nh) * T;
    float* O = out + ((int64_t)b * T + row0) * NH * HS + nh * HS;  // (rows, HS), rows NH * HS apart

    for (int i = tid; i < Br * HS; i += threads) Q[i] = i / HS < rows ? qh[(head + row0) * HS + i] : 0.0f;
    for (int r = ty; r < rows; r += blockDim.y) {
        for (int hs = tx; hs < HS; hs += blockDim.x) O[r * NH * HS + hs] = 0.0f;
        if (tx == 0) {
            m[head + row0 + r] = -INFINITY;
            l[head + row0 + r] = 0.0f;
        }
    }
    for (int key0 = 0; key0 < T; key0 += Bc) {
        if (causal && key0 >= row0 + Br) break;  // from here on everything is masked
        __syncthreads();
        for (int i = tid; i < Bc * HS; i += threads) {
            bool inside = key0 + i / HS < T;
            K[i] = inside ? kh[(head + key0) * HS + i] : 0.0f;
            V[i] = inside ? vh[(head + key0) * HS + i] : 0.0f;
        }
        __syncthreads();
        for (int r = ty; r < Br; r += blockDim.y) {
            // perhaps never skipped: Bc is at least blockDim.x
            for (int c = tx; c < Bc; c += blockDim.x) {
                int t1 = row0 + r, t2 = key0 + c;
                float sum = 0.0f;
                for (int hs = 0; hs < HS; hs++) sum += Q[r * HS + hs] * K[c * HS + hs];
                S[r * Bc + c] = t2 < T && (!causal || t2 <= t1) ? scale * sum : -INFINITY;
            }
        }
        __syncthreads();
        for (int r = ty; r < rows && tx == 0; r += blockDim.y) {
            int64_t row = head + row0 + r;
            float m_new = m[row], l_new = 0.0f;
            for (int c = 0; c < Bc; c++) m_new = fmaxf(m_new, S[r * Bc + c]);
            for (int c = 0; c < Bc; c++) {
                S[r * Bc + c] = expf(S[r * Bc + c] - m_new);
                l_new += S[r * Bc + c];
            }
            float kept = expf(m[row] - m_new) * l[row];
            l_new += kept;
            shrink[row] = kept / l_new;
            m[row] = m_new;
            l[row] = l_new;
        }
        __syncthreads();
        for (int r = ty; r < rows; r += blockDim.y) {
            int64_t row = head + row0 + r;
            int seen = min(causal ? row0 + r + 1 - key0 : Bc, Bc);  // keys after the diagonal do not change O
            for (int hs = tx; hs < HS; hs += blockDim.x) {
                float sum = 0.0f;
                for (int c = 0; c < seen; c++) sum += S[r * Bc + c] / l[row] * V[c * HS + hs];
                O[r * NH * HS + hs] = shrink[row] * O[r * NH * HS + hs] + sum;
            }
        }
    }
    if (lse == nullptr) return;
    for (int r = ty; r < rows && tx == 0; r += blockDim.y) {
        lse[head + row0 + r] = m[head + row0 + r] + logf(l[head + row0 + r]);
    }
}
