/*---
idea   = "One thread per row, three loops over its columns: the mean, the variance, the result."
expect = "Correct and far from any limit: a warp's 32 loads are in 32 rows, and 8192 rows are 8192 threads on a GPU that holds 270,000."
provenance = "The baseline kernel of ECE 408, milestone 2 (three loops per row) and milestone 3."
found  = "583 us at b8t1024 in f32 on an H200, 2 % of the copy rate, 627 us in bf16. 256 rows take 575 us, and 65536 only 1.43 ms: the time is one thread's chain of dependent operations, not memory."
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [256, 32, 64, 128]
[[launch]]
kernel = "layernorm"
grid   = "ceil_div(B * T, BLOCK)"
block  = "BLOCK"
[model]
serves = { naive = 1, any = 2 }
---*/
#include "rung.cuh"

extern "C" __global__ void layernorm(const Real* x, const Real* weight, const Real* bias, Real* out, int B, int T, int C,
                                     float eps)
{
    const int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= B * T) return;
    x += int64_t(row) * C;
    out += int64_t(row) * C;

    float mean = 0.0f;
    for (int c = 0; c < C; ++c) mean += to_float(x[c]);
    mean /= C;

    float variance = 0.0f;
    for (int c = 0; c < C; ++c) {
        const float centred = to_float(x[c]) - mean;
        variance += centred * centred;
    }
    const float rstd = rsqrtf(variance / C + eps);

    for (int c = 0; c < C; ++c)
        out[c] = from_float<Real>((to_float(x[c]) - mean) * rstd * to_float(weight[c]) + to_float(bias[c]));
}
