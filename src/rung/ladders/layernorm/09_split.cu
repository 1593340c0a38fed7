/*---
idea   = "A row is spread over the threads of a block, one or two vectors each, and weight and bias are loaded together with x: all loads of the row are in flight at once."
expect = "The shortest chain for a single row, so faster where rows are few (decoding) or long; with thousands of rows its two barriers cost time that the warp rung saves."
provenance = "Our own."
found  = "Faster where it was expected to be slower: 18.6 -> 14.4 us (1.29x) at b8t1024 in f32 on an H200 with the blocks of 64 that a sweep found (15.2 us with the first tuning, study-precision), 1.77x at b4t64; 1.82x and 1.70x torch's speed. In bf16 at b8t1024 it is slower, 12.6 -> 13.1 us (0.96x)."
dtypes = ["f32", "f16", "bf16"]
needs  = ["BLOCK % 32 == 0", "C <= 32 * BLOCK"]
[tune]
BLOCK  = [128, 64, 96, 192, 256, 384, 512]
STREAM = [1, 0]
[define]
VECTORS = "ceil_div(C, BLOCK * (16 // sizeof_real))"
ALIGNED = "1 if C % (16 // sizeof_real) == 0 else 0"
[[launch]]
kernel = "layernorm"
grid   = "B * T"
block  = "BLOCK"
[model]
serves = { prompt = 1 }
---*/
#include "rung.cuh"

// The column of element j of a thread's vector i. If C is no multiple of VEC, rows do not begin at multiples
// of 16 bytes: the same registers then hold single columns, BLOCK apart.
__device__ __forceinline__ int column(int i, int j)
{
    return ALIGNED ? (i * BLOCK + int(threadIdx.x)) * VEC + j : (i * VEC + j) * BLOCK + int(threadIdx.x);
}

// Aligned vectors are entirely inside the row or entirely outside.
__device__ __forceinline__ bool inside(int i, int j, int C) { return column(i, ALIGNED ? 0 : j) < C; }

__device__ __forceinline__ Vec<Real, VEC> load(const Real* __restrict__ row, int i, int C)
{
    Vec<Real, VEC> a;
    if (ALIGNED) {
        if (inside(i, 0, C)) a = load_vec(row + column(i, 0));
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
    layernorm(const Real* __restrict__ x, const Real* __restrict__ weight, const Real* __restrict__ bias, Real* __restrict__ out,
              int C, float eps)
{
    const Real* __restrict__ in = x + int64_t(blockIdx.x) * C;
    Real* __restrict__ normed = out + int64_t(blockIdx.x) * C;

    Vec<Real, VEC> a[VECTORS], w[VECTORS], b[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) a[i] = load(in, i, C);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        w[i] = load(weight, i, C);
        b[i] = load(bias, i, C);
    }

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            if (inside(i, j, C)) sum += to_float(a[i][j]);
    const float mean = block_sum(sum) / C;

    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            const float centred = to_float(a[i][j]) - mean;
            if (inside(i, j, C)) squares += centred * centred;
        }
    const float rstd = rsqrtf(block_sum(squares) / C + eps);

#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            a[i][j] = from_float<Real>((to_float(a[i][j]) - mean) * rstd * to_float(w[i][j]) + to_float(b[i][j]));
        store(normed, i, C, a[i]);
    }
}
