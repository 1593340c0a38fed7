/*---
idea   = "Programmatic dependent launch: blocks start while the preceding product still runs, load weight and bias, and wait before they load its result and the residual stream."
expect = "Launch and weight loads overlap the product: 1 us of 2.5 for the 64 rows of a short prompt, nothing for many rows."
provenance = "ours"
found  = "By itself it saves 7 us of a prompt of 465 (64 tokens, bf16, H200); with 512 and 1024 tokens it costs 8 and 16 us. Among products with dependent launch it contributes to their gain."
side_experiment = "The same work as a launch in the middle of a chain of kernels; its time in a table is that of overlapping launches."
from   = "layernorm/11"
inherit = ["dtypes", "needs", "tune", "define", "launch"]
[[launch]]
kernel = "layernorm"
pdl    = true
[model]
serves = { prompt = "2 if rows <= 1024 and not f32 else 0" }
untuned = [{ when = "B * T <= 1024", BLOCK = 32 }]  # more blocks than multiprocessors
---*/
#include "rung.cuh"

// The column of element j of a lane's vector i. If C is no multiple of VEC, rows do not begin at multiples of
// 16 bytes: the same registers then hold single columns, 32 apart.
__device__ __forceinline__ int column(int i, int j)
{
    return ALIGNED ? (i * WARP_SIZE + lane_id()) * VEC + j : (i * VEC + j) * WARP_SIZE + lane_id();
}

// Aligned vectors are entirely inside the row or entirely outside.
__device__ __forceinline__ bool inside(int i, int j, int C) { return column(i, ALIGNED ? 0 : j) < C; }

__device__ __forceinline__ Vec<Real, VEC> load(const Real* __restrict__ row, int i, int C)
{
    Vec<Real, VEC> a;
    if (ALIGNED) {
        if (inside(i, 0, C)) a = load_stream(row + column(i, 0));
    } else {
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            if (inside(i, j, C)) a[j] = row[column(i, j)];
    }
    return a;
}

__device__ __forceinline__ void store(Real* __restrict__ row, int i, int C, const Vec<Real, VEC>& a)
{
    if (ALIGNED) {
        if (!inside(i, 0, C)) return;
        if (STREAM)
            store_stream(row + column(i, 0), a);
        else
            store_vec(row + column(i, 0), a);
    } else {
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            if (inside(i, j, C)) row[column(i, j)] = a[j];
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    layernorm(const Real* __restrict__ x, const Real* __restrict__ residual, const Real* __restrict__ weight,
              const Real* __restrict__ bias, Real* __restrict__ out, Real* __restrict__ sum, int B, int T, int C, float eps)
{
    const int row = blockIdx.x * (BLOCK / WARP_SIZE) + warp_id();
    if (row >= B * T) return;  // the whole warp
    const int64_t first = int64_t(row) * C;

    pdl_launch_dependents();
    Vec<Real, VEC> a[VECTORS], r[VECTORS], w[VECTORS], b[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        w[i] = load(weight, i, C);
        b[i] = load(bias, i, C);
    }
    pdl_wait();
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        a[i] = load(x + first, i, C);
        r[i] = load(residual + first, i, C);
    }

    // The unrounded sum is what gets normalised: rows far off zero would otherwise lose their small differences.
    float n[VECTORS][VEC];
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            n[i][j] = to_float(a[i][j]) + to_float(r[i][j]);
            a[i][j] = from_float<Real>(n[i][j]);
            if (inside(i, j, C)) total += n[i][j];
        }
        store(sum + first, i, C, a[i]);
    }
    const float mean = warp_sum(total) / C;

    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            const float centred = n[i][j] - mean;
            if (inside(i, j, C)) squares += centred * centred;
        }
    const float rstd = rsqrtf(warp_sum(squares) / C + eps);

#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
        for (int j = 0; j < VEC; ++j) a[i][j] = from_float<Real>((n[i][j] - mean) * rstd * to_float(w[i][j]) + to_float(b[i][j]));
        store(out + first, i, C, a[i]);
    }
}
