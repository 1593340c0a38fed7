/*---
idea   = "One thread per output: it loops along a row of x and a row of weight and adds up the products."
expect = "Slow for two reasons. Neighbouring threads have neighbouring rows of x, so that every load and store of a warp touches 32 lines, and every output reads 2C numbers again."
found  = "42.9 ms at 8192 x 768 x 3072 in f32 on an H200, 0.902 TFLOP/s, 1.8 % of the rate measured there, where cublasLt takes 783 us; 1.39 ms for 256 rows. bf16 changes nothing (42.8 ms), so bandwidth is not the limit."
provenance = "ECE 408 GPT-2, milestone 3: the baseline kernel of the matrix multiplication study"
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [16, 8, 32]
[bind]
M = "B * T"
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(B * T, BLOCK)", "ceil_div(OC, BLOCK)"]
block  = ["BLOCK", "BLOCK"]
[model]
serves = { naive = 1, any = 2 }
---*/
#include "rung.cuh"

extern "C" __global__ void matmul(const Real* x, const Real* weight, const Real* bias, Real* out, int M, int OC, int C)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;  // of x: one token
    const int col = blockIdx.y * blockDim.y + threadIdx.y;  // of out: one row of weight
    if (row >= M || col >= OC) return;

    float sum = bias ? to_float(bias[col]) : 0.0f;
    for (int c = 0; c < C; c++) sum += to_float(x[size_t(row) * C + c]) * to_float(weight[size_t(col) * C + c]);
    out[size_t(row) * OC + col] = from_float<Real>(sum);
}
