/*---
idea = "A thread per query and a loop over tiles of keys, with the running maximum and sum in registers."
needs = ["C // NH <= 64"]
[bind]
inp = "qkv"
[[launch]]
kernel = "attention_forward_kernel2<64>"
grid = ["ceil_div(T, 16)", "NH", "B"]
block = 16
---*/
// Attention without the scores in memory: a block has 16 queries of a head; keys and values go by in tiles of 16.
#include <cfloat>
#include <cmath>
#include <cuda_runtime.h>

constexpr int TILE = 16;

template <int MAX_HS>
__global__ void attention_forward_kernel2(const float* __restrict__ inp, float* __restrict__ out, float scale, int causal,
                                          int T, int C, int NH) {
    const int hs = C / NH, h = blockIdx.y, b = blockIdx.z;
    const int t = blockIdx.x * TILE + threadIdx.x;
    __shared__ float k[TILE][MAX_HS];
    __shared__ float v[TILE][MAX_HS];
    const float* base = inp + (long long)b * T * 3 * C + h * hs;
    float q[MAX_HS], acc[MAX_HS];
    for (int i = 0; i < hs; ++i) {
        q[i] = t < T ? base[(long long)t * 3 * C + i] * scale : 0.f;
        acc[i] = 0.f;
    }
    float m = -FLT_MAX, l = 0.f;
    const int last = causal ? min(T, (int)(blockIdx.x + 1) * TILE) : T;
    for (int start = 0; start < last; start += TILE) {
        const int key = start + threadIdx.x;
        for (int i = 0; i < hs; ++i) {
            k[threadIdx.x][i] = key < T ? base[(long long)key * 3 * C + C + i] : 0.f;
            v[threadIdx.x][i] = key < T ? base[(long long)key * 3 * C + 2 * C + i] : 0.f;
        }
        __syncthreads();
        for (int j = 0; j < TILE; ++j) {
            const int t2 = start + j;
            if (t2 >= T || (causal && t2 > t)) break;
            float s = 0.f;
            for (int i = 0; i < hs; ++i) s += q[i] * k[j][i];
            const float m_new = fmaxf(m, s), corr = expf(m - m_new), p = expf(s - m_new);
            for (int i = 0; i < hs; ++i) acc[i] = acc[i] * corr + p * v[j][i];
            l = l * corr + p;
            m = m_new;
        }
        __syncthreads();
    }
    if (t < T)
        for (int i = 0; i < hs; ++i) out[((long long)b * T + t) * C + h * hs + i] = acc[i] / l;
}
