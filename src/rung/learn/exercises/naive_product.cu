/*---
idea   = "One thread per output: a dot product of two rows, read from global memory."
dtypes = ["f32"]
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, 32)", "ceil_div(B * T, 4)"]
block  = [32, 4]
---*/
#include "rung.cuh"

extern "C" __global__ void matmul(const float* x, const float* weight, const float* bias, float* out, int B, int T, int C, int OC)
{
    const int m = blockIdx.y * 4 + threadIdx.y, n = blockIdx.x * 32 + threadIdx.x;
    if (BLANK_1) return;
    float sum = bias ? bias[n] : 0.0f;
    for (int c = 0; c < C; c++) sum += BLANK_2;
    out[int64_t(m) * OC + n] = sum;
}
