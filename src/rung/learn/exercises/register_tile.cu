/*---
idea   = "Each thread computes four outputs of a column, so that a value of the weight serves four products."
dtypes = ["f32"]
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, 32)", "ceil_div(B * T, 32)"]
block  = [32, 8]
---*/
#include "rung.cuh"

extern "C" __global__ void matmul(const float* x, const float* weight, const float* bias, float* out, int B, int T, int C, int OC)
{
    __shared__ float xs[32][33], ws[32][33];
    const int n = blockIdx.x * 32 + threadIdx.x;
    float sum[4] = {};
    for (int c0 = 0; c0 < C; c0 += 32) {
        const int c = c0 + threadIdx.x;
        for (int r = threadIdx.y; r < 32; r += 8) {
            const int m = blockIdx.y * 32 + r, w_row = blockIdx.x * 32 + r;
            xs[r][threadIdx.x] = m < B * T && c < C ? x[int64_t(m) * C + c] : 0.0f;
            ws[r][threadIdx.x] = w_row < OC && c < C ? weight[int64_t(w_row) * C + c] : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < 32; k++) {
            const float w = BLANK_1;
            for (int j = 0; j < 4; j++) sum[j] += BLANK_2 * w;
        }
        __syncthreads();
    }
    for (int j = 0; j < 4; j++) {
        const int m = blockIdx.y * 32 + BLANK_3;
        if (m < B * T && n < OC) out[int64_t(m) * OC + n] = sum[j] + (bias ? bias[n] : 0.0f);
    }
}
