/*---
idea   = "The row is read once, 16 bytes per lane with all loads in flight together, and stays in the warp's registers for maximum, sum and quotients. Masked columns are never read."
expect = "One read and one write, so up to twice the online rung where rows come from memory; the exponential of each score is taken once."
provenance = "Our own. A vector that extends beyond a row (S need not be a multiple of 4 or 8) is moved element by element, all others whole."
found  = "195 -> 155 us (1.26x) at b8t1024 in f32 on an H200, 91 % of the copy rate, and 158 -> 92.8 us (1.70x) in bf16, the fastest there: 5.73x and 7.27x torch's speed, which multiplies, masks and then takes its softmax. Less than twofold in f32, presumably since caches had held the row."
rewrite = "The row moves from memory into registers: each loop over it becomes a loop over the lane's registers, for three number formats."
dtypes = ["f32", "f16", "bf16"]
needs  = ["BLOCK % 32 == 0", "S <= 2048"]
[tune]
BLOCK  = [128, 32, 64, 256]
STREAM = [1, 0]
[define]
VECTORS = "ceil_div(S + (0 if S % (16 // sizeof_real) == 0 else 16 // sizeof_real - 1), 32 * (16 // sizeof_real))"
[[launch]]
kernel = "softmax"
grid   = "ceil_div(B * NH * T, BLOCK // 32)"
block  = "BLOCK"
---*/
#include "rung.cuh"

// Columns s .. s + VEC of a row, at a multiple of 16 bytes; those outside [0, visible) become -infinity.
__device__ __forceinline__ Vec<Real, VEC> load(const Real* __restrict__ row, int s, int visible)
{
    if (s >= 0 && s + VEC <= visible) return load_stream(row + s);
    Vec<Real, VEC> a;
#pragma unroll
    for (int j = 0; j < VEC; ++j) a[j] = s + j >= 0 && s + j < visible ? row[s + j] : from_float<Real>(-INFINITY);
    return a;
}

__device__ __forceinline__ void store(Real* __restrict__ row, int s, int S, const Vec<Real, VEC>& a)
{
    if (s >= 0 && s + VEC <= S) {
        if (STREAM)
            store_stream(row + s, a);
        else
            store_vec(row + s, a);
        return;
    }
#pragma unroll
    for (int j = 0; j < VEC; ++j)
        if (s + j >= 0 && s + j < S) row[s + j] = a[j];
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    softmax(const Real* __restrict__ x, Real* __restrict__ out, int B, int NH, int T, int S, int causal, float scale)
{
    const int row = blockIdx.x * (BLOCK / WARP_SIZE) + warp_id();
    if (row >= B * NH * T) return;  // the whole warp
    const int visible = causal ? S - T + row % T + 1 : S;
    const int64_t begin = int64_t(row) * S;
    const int lead = begin % VEC;  // vectors are aligned to 16 bytes; the row starts this far into the first
    const int first = lane_id() * VEC - lead;
    const float to_log2 = scale * 1.4426950408889634f;

    Vec<Real, VEC> a[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) a[i] = load(x + begin, first + i * WARP_SIZE * VEC, visible);

    float m = -INFINITY;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
#pragma unroll
        for (int j = 0; j < VEC; ++j) m = fmaxf(m, to_float(a[i][j]));
    m = warp_max(m) * to_log2;

    float l = 0.0f, p[VECTORS][VEC];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            p[i][j] = exp2f(to_log2 * to_float(a[i][j]) - m);
            l += p[i][j];
        }
    const float inverse = 1.0f / warp_sum(l);

#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
        for (int j = 0; j < VEC; ++j) a[i][j] = from_float<Real>(p[i][j] * inverse);
        store(out + begin, first + i * WARP_SIZE * VEC, S, a[i]);
    }
}
