/*---
idea   = "A row is spread over the threads of a block, and the weight is loaded together with it: all loads of the row are in flight at once."
expect = "The shortest chain for a single row, so faster where rows are few (steps) or long, and any width up to 32,768; with thousands of rows its barriers cost what the warp rung saves."
found  = "34.4 us for b8t1024 in bf16 after 38.4, 91 % of copy bandwidth; one row takes 1.5 us after 2.3."
dtypes = ["f32", "f16", "bf16"]
needs  = ["BLOCK % 32 == 0", "C <= 64 * BLOCK"]
[tune]
BLOCK = [256, 512, 128, 1024]
[define]
LANES = "BLOCK"
VECTORS = "ceil_div(C, BLOCK * (16 // sizeof_real))"
ALIGNED = "1 if C % (16 // sizeof_real) == 0 else 0"
[[launch]]
kernel = "rmsnorm_residual"
grid   = "B * T"
block  = "BLOCK"
[model]
serves = { prompt = 1 }
---*/
#include "row_vectors.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
    rmsnorm_residual(const Real* __restrict__ x, const Real* __restrict__ residual, const Real* __restrict__ weight,
                     Real* __restrict__ out, Real* __restrict__ sum, int C, float eps)
{
    const int64_t first = int64_t(blockIdx.x) * C;
    Row a, r, w;
    load_row(a, x + first, C);
    load_row(r, residual + first, C);
    load_row(w, weight, C);

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
