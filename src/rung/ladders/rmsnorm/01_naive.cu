/*---
idea   = "One thread per row, two loops over its columns: the mean square, the result."
expect = "Correct and far from any limit: a warp's 32 loads are in 32 rows, and each thread waits for its own chain of additions."
found  = "1.32 ms for b8t1024 in bf16 and 1.03 ms in f32, although f32 moves twice the bytes: one thread walks a row, so time is latency."
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [256, 32, 64, 128]
[[launch]]
kernel = "rmsnorm"
grid   = "ceil_div(B * T, BLOCK)"
block  = "BLOCK"
[model]
serves = { naive = 1, prompt = 3 }
---*/
#include "rung.cuh"

extern "C" __global__ void rmsnorm(const Real* x, const Real* weight, Real* out, int B, int T, int C, float eps)
{
    const int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= B * T) return;
    x += int64_t(row) * C;
    out += int64_t(row) * C;

    float squares = 0.0f;
    for (int c = 0; c < C; ++c) squares += to_float(x[c]) * to_float(x[c]);
    const float scale = rsqrtf(squares / C + eps);

    for (int c = 0; c < C; ++c) out[c] = from_float<Real>(to_float(x[c]) * scale * to_float(weight[c]));
}
