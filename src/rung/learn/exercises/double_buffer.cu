/*---
idea   = "Two tiles in turn: the next one is loaded while this one is used, with one barrier per iteration."
dtypes = ["f32"]
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, 32)", "ceil_div(B * T, 32)"]
block  = [32, 32]
---*/
#include "rung.cuh"

extern "C" __global__ void matmul(const float* x, const float* weight, const float* bias, float* out, int B, int T, int C, int OC)
{
    __shared__ float xs[2][32][33], ws[2][32][33];
    const int m = blockIdx.y * 32 + threadIdx.y, n = blockIdx.x * 32 + threadIdx.x;
    const auto fill = [&](int tile) {
        const int c = tile * 32 + threadIdx.x, w_row = blockIdx.x * 32 + threadIdx.y;
        xs[tile % 2][threadIdx.y][threadIdx.x] = m < B * T && c < C ? x[int64_t(m) * C + c] : 0.0f;
        ws[tile % 2][threadIdx.y][threadIdx.x] = w_row < OC && c < C ? weight[int64_t(w_row) * C + c] : 0.0f;
    };
    const int tiles = ceil_div(C, 32);
    float sum = 0.0f;
    fill(0);
    for (int tile = 0; tile < tiles; tile++) {
        BLANK_1;
        if (BLANK_2) fill(tile + 1);
        for (int k = 0; k < 32; k++) sum += xs[BLANK_3][threadIdx.y][k] * ws[BLANK_3][threadIdx.x][k];
    }
    if (m < B * T && n < OC) out[int64_t(m) * OC + n] = sum + (bias ? bias[n] : 0.0f);
}
