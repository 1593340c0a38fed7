/*---
idea   = "For 2 to 16 rows: 16 rows of weights are the rows of a tensor core's product, and the rows of x its columns; weights are loaded once, into the registers that the product reads."
expect = "Eight rows at the price of one: rung 6 multiplies on CUDA cores, eight times as much for eight rows, and refuses eight rows of 8,192. A deep product loads x in rounds, beside its weights."
found  = "See rmsnorm_matmul/3, with which it makes a step of eight texts of Llama's layer 1.8 to 2.1 times as fast on an H100. 48 tiles of a narrow product (768 columns) leave 84 multiprocessors idle: one reason why eight texts of gpt2 by operations take 254 to 301 us, and by one kernel 252."
from   = "matmul_residual/6"
dtypes = ["bf16", "f16"]
needs  = ["sm >= 80", "2 <= B * T <= 16", "C % 32 == 0", "TALL * DEPTH <= 8", "SHARED <= 200000"]
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
[[launch]]
kernel = "matmul_residual"
grid   = "ceil_div(TILES, ceil_div(TILES, 132 * RESIDENT))"
block  = "32 * WARPS"
shared = "SHARED"
pdl    = true
[model]
serves = { step = "1 if bf16 and 1 < rows <= 16 else 0" }
---*/
#include "few_columns.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
    matmul_residual(const Real* __restrict__ x, const Real* __restrict__ weight, const Real* __restrict__ bias,
                    const Real* residual, Real* out, int OC)
{
    few_columns::products<few_columns::NONE, 1>(
        x, nullptr, nullptr, weight, OC, 0.0f,
        [&](int m, int row) { return to_float(residual[size_t(m) * OC + row]) + (bias != nullptr ? to_float(bias[row]) : 0.0f); },
        [&](int m, int row, float2 sum) { out[size_t(m) * OC + row] = from_float<Real>(sum.x); });
}
