/*---
idea   = "Programmatic dependent launch: blocks start while the preceding product still runs, load the weight, and wait before they load its result."
expect = "Launch and weight load overlap the product: about 1 us of each norm between the products of a step of 64 or 256 texts, nothing for many rows."
side_experiment = "The same work as a launch in the middle of a chain of kernels; its time in a table is that of overlapping launches."
from   = "rmsnorm_residual/3"
inherit = ["dtypes", "needs", "tune", "define", "launch"]
[[launch]]
kernel = "rmsnorm_residual"
pdl    = true
[model]
serves = { prompt = "1 if rows <= 1024 and not f32 else 0" }
---*/
#include "row_vectors.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
    rmsnorm_residual(const Real* __restrict__ x, const Real* __restrict__ residual, const Real* __restrict__ weight,
                     Real* __restrict__ out, Real* __restrict__ sum, int C, float eps)
{
    const int64_t first = int64_t(blockIdx.x) * C;
    Row a, r, w;
    pdl_launch_dependents();
    load_row(w, weight, C);
    pdl_wait();
    load_row(a, x + first, C);
    load_row(r, residual + first, C);

    float n[VECTORS][VEC], squares = 0.0f;  // what is normalised is the unrounded sum
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            n[i][j] = to_float(a[i][j]) + to_float(r[i][j]);
            a[i][j] = from_float<Real>(n[i][j]);
            if (inside(i, j, C)) squares += n[i][j] * n[i][j];
        }
    store_row(sum + first, C, a);
    const float scale = rsqrtf(block_sum(squares) / C + eps);

#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
#pragma unroll
        for (int j = 0; j < VEC; ++j) a[i][j] = from_float<Real>(n[i][j] * scale * to_float(w[i][j]));
    store_row(out + first, C, a);
}
