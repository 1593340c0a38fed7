/*---
idea   = "Rung 1 with __restrict__ on its four pointers and nothing else changed."
expect = "Nothing in the first two loops, which store nothing; in the third, loads may be moved above earlier stores. The report found the machine code unchanged."
found  = "523 us at b4t64 in f32 on an H200; rung 1 took 572 us in an earlier run. Not nothing, then; which loads moved was not looked at."
provenance = "ECE 408 milestone 3, Restrict: the baseline's layernorm with and without (7.275 -> 7.177 ms on an A40)."
from   = "layernorm/1"
side_experiment = "The report's experiment, on rung 1."
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [256, 32, 64, 128]
[[launch]]
kernel = "layernorm"
grid   = "ceil_div(B * T, BLOCK)"
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void layernorm(const Real* __restrict__ x, const Real* __restrict__ weight, const Real* __restrict__ bias,
                                     Real* __restrict__ out, int B, int T, int C, float eps)
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
