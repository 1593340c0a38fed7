/*---
idea   = "Rung 19 with weight and bias in constant memory and nothing else changed."
expect = "Two of six accesses to global memory in each iteration are gone: 196,608 instead of 294,912 at b4t64, as in the report."
found  = "254.8 -> 221.2 us (1.15x) at b4t64 in f32 on an H200; the report had 1.14x. The accesses to global memory are exactly the report's, 294,912 and 196,608."
provenance = "ECE 408 milestone 3, Constant Memory: 196.61 k global memory instructions, 7.2 -> 6.3 ms on an A40."
from   = "layernorm/19"
side_experiment = "The report's launch, for its counters."
dtypes = ["f32", "f16", "bf16"]
needs  = "C <= 4096"
[constants]
weight = "c_weight"
bias   = "c_bias"
[[launch]]
kernel = "layernorm"
grid   = ["ceil_div(B, 32)", "ceil_div(T, 32)"]
block  = [32, 32]
---*/
#include "rung.cuh"

__constant__ Real c_weight[4096];
__constant__ Real c_bias[4096];

extern "C" __global__ void layernorm(const Real* x, Real* out, int B, int T, int C, float eps)
{
    const int b = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y * blockDim.y + threadIdx.y;
    if (b >= B || t >= T) return;
    const int row = b * T + t;
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
        out[c] = from_float<Real>((to_float(x[c]) - mean) * rstd * to_float(c_weight[c]) + to_float(c_bias[c]));
}
