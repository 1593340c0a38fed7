/*---
idea   = "Flash attention 2, as another group wrote it: 16x16 tiles, 256 threads that share each step, trees in shared memory, the denominator at the end."
expect = "Far from rung 24: each score is written to and read from shared memory several times, sixteen rows and columns give little reuse, each tile has some twenty barriers, and masked tiles are computed too."
found  = "9.21 ms at b8t1024 in f32 on an H200, 21.2x the time of rung 24: the algorithm alone does not make it fast. At b4t64 30.8 us is 549x over rung 2's five kernels, where its authors had 416x on an A40."
provenance = "ECE 408 GPT-2 report, milestone 3, flash attention: 1.13 ms at B 4, T 64, NH 12 on an A40, 416x the badly launched five kernels."
from   = "attention/13"
rewrite = "Another group's program from the same paper: compare the algorithm, not the code."
dtypes = ["f32"]
needs  = "scale > 0"

# q, k and v are views of one qkv and share their strides
bind = { stride_B = "q_stride_B", stride_NH = "q_stride_NH", stride_T = "q_stride_T" }

[define]
D = "C // NH"

[[launch]]
kernel = "flash"
grid   = ["ceil_div(T, 16)", "NH", "B"]
block  = 256
---*/
#include "rung.cuh"

constexpr int BR = 16, BC = 16, NTHREADS = 256;
constexpr int ROWS_AT_ONCE = NTHREADS / BC;

extern "C" __global__ void flash(const float* q, const float* k, const float* v, float* out, float* lse, int T, int NH,
                                 int stride_B, int stride_NH, int stride_T, float scale, int causal)
{
    __shared__ float qi[BR * D];
    __shared__ float ks[BC * D];
    __shared__ float vs[BC * D];
    __shared__ float oi[BR * D];
    __shared__ float si[BR * BC];
    __shared__ float pi[BR * BC];
    __shared__ float temp_max[BR];
    __shared__ float temp_l[BR];
    __shared__ float l[BR];
    __shared__ float m[BR];
    __shared__ float reduced[BR * BC];
    int idx = threadIdx.x, start = blockIdx.x * BR, nh = blockIdx.y, b = blockIdx.z;
    int64_t head = (int64_t)b * stride_B + nh * stride_NH;

    for (int i = idx; i < BR * D; i += NTHREADS) {
        int row = start + i / D;
        qi[i] = row < T ? q[head + (int64_t)row * stride_T + i % D] : 0.0f;
        oi[i] = 0.0f;
    }
    if (idx < BR) {
        l[idx] = 0.0f;
        m[idx] = -FLT_MAX;
    }
    for (int j = 0; j < T; j += BC) {
        __syncthreads();
        for (int i = idx; i < BC * D; i += NTHREADS) {
            int64_t at = head + (int64_t)(j + i / D) * stride_T + i % D;
            bool inside = j + i / D < T;
            ks[i] = inside ? k[at] : 0.0f;
            vs[i] = inside ? v[at] : 0.0f;
        }
        __syncthreads();

        // S = Q K^T, with the mask
        for (int i = idx; i < BR * BC; i += NTHREADS) {
            int row = i / BC, col = i % BC;
            float sum = 0.0f;
            for (int d = 0; d < D; d++) sum += qi[row * D + d] * ks[col * D + d];
            bool seen = j + col < T && (!causal || j + col <= start + row);
            si[i] = seen ? sum : -FLT_MAX;
        }
        __syncthreads();

        // the rows' maxima
        for (int row0 = 0; row0 < BR; row0 += ROWS_AT_ONCE) {
            int row = row0 + idx / BC, col = idx % BC;
            reduced[row * BC + col] = si[row * BC + col];
            for (int stride = BC / 2; stride >= 1; stride /= 2) {
                __syncthreads();
                if (col < stride) {
                    reduced[row * BC + col] = fmaxf(reduced[row * BC + col], reduced[row * BC + col + stride]);
                }
            }
            __syncthreads();
            if (col == 0) temp_max[row] = fmaxf(reduced[row * BC], m[row]);
            __syncthreads();
        }

        // P = exp(S - m)
        for (int i = idx; i < BR * BC; i += NTHREADS) {
            int row = i / BC, col = i % BC;
            bool seen = j + col < T && (!causal || j + col <= start + row);
            pi[i] = seen ? expf(scale * (si[i] - temp_max[row])) : 0.0f;
        }
        __syncthreads();

        // the rows' sums
        for (int row0 = 0; row0 < BR; row0 += ROWS_AT_ONCE) {
            int row = row0 + idx / BC, col = idx % BC;
            reduced[row * BC + col] = pi[row * BC + col];
            for (int stride = BC / 2; stride >= 1; stride /= 2) {
                __syncthreads();
                if (col < stride) reduced[row * BC + col] += reduced[row * BC + col + stride];
            }
            __syncthreads();
            if (col == 0) temp_l[row] = reduced[row * BC];
            __syncthreads();
        }
        if (idx < BR) l[idx] = expf(scale * (m[idx] - temp_max[idx])) * l[idx] + temp_l[idx];

        // O = O exp(m_old - m_new) + P V
        for (int i = idx; i < BR * D; i += NTHREADS) {
            int row = i / D, d = i % D;
            float sum = 0.0f;
            for (int col = 0; col < BC; col++) sum += pi[row * BC + col] * vs[col * D + d];
            oi[i] = expf(scale * (m[row] - temp_max[row])) * oi[i] + sum;
        }
        __syncthreads();
        if (idx < BR) m[idx] = temp_max[idx];
    }
    __syncthreads();

    for (int i = idx; i < BR * D; i += NTHREADS) oi[i] /= l[i / D];
    __syncthreads();
    for (int i = idx; i < BR * D; i += NTHREADS) {
        int row = start + i / D;
        if (row < T) out[(((int64_t)b * T + row) * NH + nh) * D + i % D] = oi[i];
    }
    if (lse != nullptr && idx < BR && start + idx < T) {
        lse[((int64_t)b * NH + nh) * T + start + idx] = scale * m[idx] + logf(l[idx]);
    }
}
