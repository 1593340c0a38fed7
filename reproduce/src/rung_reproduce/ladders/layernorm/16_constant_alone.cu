/*---
idea   = "Rung 1 with weight and bias in constant memory and nothing else changed: every lane needs the same c, which is one broadcast."
expect = "Two of the third loop's three loads leave the load/store unit. Rung 4 does the same to a kernel that is also unrolled and restricted; the difference to rung 1 is the constant memory's alone."
found  = "572 -> 518 us (1.10x) at b4t64 in f32 on an H200, where the report had 1.14x: on the kernel as first written the constant memory does gain, on rung 3's it does not."
provenance = "ECE 408 milestone 3, Constant Memory: the baseline's kernel with c_weight and c_bias (7.2 -> 6.3 ms on an A40; 294.9 k -> 196.6 k global memory instructions)."
from   = "layernorm/1"
side_experiment = "The report's experiment, on rung 1."
dtypes = ["f32", "f16", "bf16"]
needs  = "C <= 4096"
[tune]
BLOCK = [256, 32, 64, 128]
[constants]
weight = "c_weight"
bias   = "c_bias"
[[launch]]
kernel = "layernorm"
grid   = "ceil_div(B * T, BLOCK)"
block  = "BLOCK"
---*/
#include "rung.cuh"

__constant__ Real c_weight[4096];
__constant__ Real c_bias[4096];

extern "C" __global__ void layernorm(const Real* x, Real* out, int B, int T, int C, float eps)
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
        out[c] = from_float<Real>((to_float(x[c]) - mean) * rstd * to_float(c_weight[c]) + to_float(c_bias[c]));
}
