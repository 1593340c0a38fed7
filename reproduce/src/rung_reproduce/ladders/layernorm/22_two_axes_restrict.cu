/*---
idea   = "Rung 19 with __restrict__ on its four pointers and nothing else changed."
expect = "The report found the same machine code. Today's compiler may move loads of the third loop above its stores."
provenance = "ECE 408 milestone 3, Restrict: 7.275 -> 7.177 ms on an A40."
from   = "layernorm/19"
side_experiment = "The report's launch."
dtypes = ["f32", "f16", "bf16"]
[[launch]]
kernel = "layernorm"
grid   = ["ceil_div(B, 32)", "ceil_div(T, 32)"]
block  = [32, 32]
---*/
#include "rung.cuh"

extern "C" __global__ void layernorm(const Real* __restrict__ x, const Real* __restrict__ weight, const Real* __restrict__ bias,
                                     Real* __restrict__ out, int B, int T, int C, float eps)
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
        out[c] = from_float<Real>((to_float(x[c]) - mean) * rstd * to_float(weight[c]) + to_float(bias[c]));
}
