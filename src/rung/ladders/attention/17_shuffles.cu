/*---
idea   = "A row's maximum and sum by warp shuffles, in five steps each; m and l stay in registers and their global buffers are gone."
expect = "One lane no longer scans 32 scores while 31 wait, and two barriers per tile disappear: five to ten per cent."
found  = "3.26 -> 2.52 ms (1.29x) at b8t1024 in f32 on an H200, 1.21x at b4t64, 1.28x to 1.30x for one head of 256 to 8192: more than the five to ten per cent expected; the study: 18.6 -> 17.7 s, 1.05x of a whole text."
provenance = "fp32 flash attention case study, version 5: 18.6 -> 17.7 s."
from   = "attention/16"
inherit = ["options", "tune", "launch"]
dtypes = ["f32"]

buffers.qh = { shape = ["B", "NH", "T", "HS"], dtype = "f32" }
buffers.kh = { shape = ["B", "NH", "T", "HS"], dtype = "f32" }
buffers.vh = { shape = ["B", "NH", "T", "HS"], dtype = "f32" }
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

// A thread has one score of each tile, a warp one row, whose m and l its lanes hold in registers.
extern "C" __global__ void __launch_bounds__(BR* BC) flash(const float* qh, const float* kh, const float* vh, float* out,
                                                           float* lse, int T, int NH, int HS, float scale, int causal)
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
    float m = -INFINITY, l = 0.0f;  // the same in all lanes

    for (int i = tid; i < BR * HS; i += BR * BC) Q[i] = row0 + i / HS < T ? qh[(head + row0) * HS + i] : 0.0f;
    if (t1 < T) {
        for (int hs = tx; hs < HS; hs += BC) O[hs] = 0.0f;
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
        float m_new = fmaxf(m, warp_max(score));
        float p = expf(score - m_new);
        float kept = expf(m - m_new) * l;
        m = m_new;
        l = kept + warp_sum(p);
        float shrink = kept / l;
        S[ty][tx] = p;
        __syncwarp();
        if (t1 < T) {
            int seen = min(causal ? t1 + 1 - key0 : BC, BC);  // keys after the diagonal do not change O
            for (int hs = tx; hs < HS; hs += BC) {
                float sum = 0.0f;
                for (int c = 0; c < seen; c++) sum += S[ty][c] / l * V[c * HS + hs];
                O[hs] = shrink * O[hs] + sum;
            }
        }
    }
    if (lse != nullptr && tx == 0 && t1 < T) lse[row] = m + logf(l);
}
