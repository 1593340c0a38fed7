/*---
idea   = "Rung 1 in the report's launch: blocks of 32 x 32 threads, sequences along x and tokens along y."
expect = "With four sequences 28 of 32 lanes have nothing to do: 64 warps instead of 8, so eight times the instructions of rung 1 for the same work. 294,912 accesses to global memory at b4t64, 64 warps times 768 columns times six, as in the report."
found  = "255 us at b4t64 in f32 on an H200, and the report's counts exactly: 294.9 thousand accesses. Faster than rung 1, which took 572 us in an earlier run with its eight warps."
provenance = "ECE 408 milestone 3, Constant Memory: 294.91 k global memory instructions of the baseline."
from   = "layernorm/1"
side_experiment = "The report's launch, for its counters."
dtypes = ["f32", "f16", "bf16"]
[[launch]]
kernel = "layernorm"
grid   = ["ceil_div(B, 32)", "ceil_div(T, 32)"]
block  = [32, 32]
---*/
#include "rung.cuh"

extern "C" __global__ void layernorm(const Real* x, const Real* weight, const Real* bias, Real* out, int B, int T, int C,
                                     float eps)
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
