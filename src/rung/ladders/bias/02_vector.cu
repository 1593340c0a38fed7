/*---
idea   = "Sixteen bytes per load and store; the grid's x is the column and its y the row, so no division is needed."
expect = "Copy speed in every dtype: a quarter of the instructions, and no 64-bit remainder per element."
provenance = "Vectorised loads, as in the other pointwise ladders."
found  = "77.2 -> 50.3 us (1.53x) at b8t1024 in f32 on an H200, 94 % of the copy rate, and 1.47x torch's speed (73.7 us); 1.05x at b4t64, 1.13x torch's."
dtypes = ["f32", "f16", "bf16"]
needs  = "OC % (16 // sizeof_real) == 0"
[tune]
BLOCK = [128, 64, 256]
ROWS  = [4, 1, 2, 8]
[[launch]]
kernel = "add_bias"
grid   = ["ceil_div(OC, BLOCK * (16 // sizeof_real))", "min(ceil_div(B * T, ROWS), max_grid_y)"]
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
    add_bias(const Real* __restrict__ x, const Real* __restrict__ bias, Real* __restrict__ out, int B, int T, int OC)
{
    const int column = (blockIdx.x * BLOCK + threadIdx.x) * VEC;
    if (column >= OC) return;
    const Vec<Real, VEC> add = load_vec<Real>(bias + column);
    const int rows = B * T;
    for (int first = blockIdx.y * ROWS; first < rows; first += gridDim.y * ROWS) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (first + r >= rows) break;
            const int64_t at = int64_t(first + r) * OC + column;
            Vec<Real, VEC> v = load_vec<Real>(x + at);
#pragma unroll
            for (int i = 0; i < VEC; ++i) v.v[i] = from_float<Real>(to_float(v.v[i]) + to_float(add.v[i]));
            store_vec(out + at, v);
        }
    }
}
