/*---
idea   = "A row is spread over the threads of a block, and the weight is loaded together with it: all loads of the row are in flight at once."
expect = "The shortest chain for a single row, so faster where rows are few (steps) or long, and any width up to 32,768; with thousands of rows its barriers cost what the warp rung saves."
found  = "19.5 us for b8t1024 in bf16, 81 % of copy bandwidth, torch 23.1. One row takes 1.4 us after 2.3. Rows of a head are too short for it: 217 us in f32 where one warp per row takes 49.4."
dtypes = ["f32", "f16", "bf16"]
needs  = ["BLOCK % 32 == 0", "C <= 64 * BLOCK"]
[tune]
BLOCK = [256, 512, 128, 1024]
[define]
LANES = "BLOCK"
VECTORS = "ceil_div(C, BLOCK * (16 // sizeof_real))"
ALIGNED = "1 if C % (16 // sizeof_real) == 0 else 0"
[[launch]]
kernel = "rmsnorm"
grid   = "B * T"
block  = "BLOCK"
[model]
serves = { prompt = 1 }
---*/
#include "row_vectors.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
    rmsnorm(const Real* __restrict__ x, const Real* __restrict__ weight, Real* __restrict__ out, int C, float eps)
{
    const int64_t first = int64_t(blockIdx.x) * C;
    Row a, w;
    load_row(a, x + first, C);
    load_row(w, weight, C);

    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            if (inside(i, j, C)) squares += to_float(a[i][j]) * to_float(a[i][j]);
    const float scale = rsqrtf(block_sum(squares) / C + eps);

#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
#pragma unroll
        for (int j = 0; j < VEC; ++j) a[i][j] = from_float<Real>(to_float(a[i][j]) * scale * to_float(w[i][j]));
    store_row(out + first, C, a);
}
