/*---
idea   = "For 2 to 16 rows: each warp normalises its own chunks of the rows in registers, after one exchange of means and squared distances; they are the columns of a tensor core's product, whose rows are 16 rows of weights, loaded once."
expect = "A step's products for eight texts at the price of one, GELU included: no launch for the norm, and weights requested before the kernel ahead has ended (dependent launch)."
found  = "On an H100 a step of gpt2 by operations takes 370 us with sixteen texts (batch: 391), but 301 with eight and 269 with two (few_rows: 254, 194), so that it serves more than eight; a step of gpt2-xl with eight takes 1,891 instead of 2,372."
from   = "rmsnorm_matmul/3"
dtypes = ["bf16", "f16"]
needs  = ["sm >= 80", "2 <= B * T <= 16", "C % 32 == 0", "ROUNDS == 1", "TALL * DEPTH <= 8", "SHARED <= 200000"]
[tune]
WARPS = [16, 8]
TALL = [1, 2, 4]  # tiles of 16 rows that are multiplied together
EARLY = [1, 0]  # whether the next kernel may start before this one has its input
[let]
GROUPS = "ceil_div(B * T, 8)"
STEPS  = "ceil_div(C // 32, WARPS)"
ROUNDS = "ceil_div(STEPS, 8 // GROUPS)"
DEPTH  = "ceil_div(STEPS, ROUNDS)"
RESIDENT = "2 if TALL * DEPTH * GROUPS <= 3 else 1"  # blocks on a multiprocessor
TILES  = "ceil_div(OC, 16 * TALL)"
SHARED = "2 * WARPS * TALL * GROUPS * 640"
[define]
M      = "B * T"
C      = "C"
DEPTH  = "DEPTH"
ROUNDS = "ROUNDS"
RESIDENT = "RESIDENT"
GELU   = "gelu"
[[launch]]
kernel = "layernorm_matmul"
grid   = "ceil_div(TILES, ceil_div(TILES, 132 * RESIDENT))"
block  = "32 * WARPS"
shared = "SHARED"
pdl    = true
[model]
serves = { step = "1 if bf16 and 1 < rows <= 16 else 0" }
---*/
#include "few_columns.cuh"

__device__ __forceinline__ float gelu(float x)
{
    const float u = 0.7978845608f * (x + 0.044715f * x * x * x);
    return __fdividef(x, 1.0f + __expf(fminf(-2.0f * u, 80.0f)));
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
    layernorm_matmul(const Real* __restrict__ x, const Real* __restrict__ ln_weight, const Real* __restrict__ ln_bias,
                     const Real* __restrict__ weight, const Real* __restrict__ bias, Real* __restrict__ out, int OC, float eps)
{
    few_columns::products<few_columns::LAYER, 1>(
        x, ln_weight, ln_bias, weight, OC, eps, [&](int, int row) { return bias != nullptr ? to_float(bias[row]) : 0.0f; },
        [&](int m, int row, float2 sum) { out[size_t(m) * OC + row] = from_float<Real>(GELU ? gelu(sum.x) : sum.x); });
}
