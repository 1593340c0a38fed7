/*---
idea   = "Rung 11's addition with rung 13's copies: the copy engine loads a row and its residual, STAGES rows ahead, in persistent blocks."
expect = "Of 8192 rows of 768 in bf16 rung 11 moves 50 MB in 16 to 18 us, 70 % of the copy rate, and between two products of a model the L2 holds half of that. With rows prefetched: 11 to 13 us."
found  = "Near expectation: 14.4 us for 8 x 1024 rows of 768 in bf16 on an H200, 82 % of the copy rate, and 92 % with 64 x 1024 rows; torch's addition and normalisation take 19.5 and 137 us."
provenance = "ours"
from   = "layernorm/13"
dtypes = ["f32", "f16", "bf16"]
needs  = ["sm >= 90", "BLOCK % 32 == 0", "C * sizeof_real % 16 == 0", "C * sizeof_real <= 5120", "BLOCK // 32 * STAGES * (2 * C * sizeof_real + 8) <= 220000"]
[tune]
BLOCK  = [256, 128, 512]
PER_SM = [2, 1, 3, 4]
STAGES = [3, 2, 4, 6]
STREAM = [0, 1]
[define]
VECTORS = "ceil_div(C, 32 * (16 // sizeof_real))"
[[launch]]
kernel = "layernorm"
grid   = "min(ceil_div(B * T, BLOCK // 32), sms * PER_SM)"
block  = "BLOCK"
shared = "BLOCK // 32 * STAGES * (2 * C * sizeof_real + 8)"
[model]
serves = { prompt = "1 if rows >= 2048 else 0" }
---*/
#include "rung.cuh"

// The column of a lane's vector i; vectors are entirely inside the row or entirely outside.
__device__ __forceinline__ int column(int i) { return (i * WARP_SIZE + lane_id()) * VEC; }

__device__ __forceinline__ void load(Vec<Real, VEC> (&a)[VECTORS], const Real* row, int C)
{
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
        if (column(i) < C) a[i] = load_vec(row + column(i));
}

__device__ __forceinline__ void store(Real* row, const Vec<Real, VEC>& a)
{
    if (STREAM)
        store_stream(row, a);
    else
        store_vec(row, a);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    layernorm(const Real* __restrict__ x, const Real* __restrict__ residual, const Real* __restrict__ weight,
              const Real* __restrict__ bias, Real* __restrict__ out, Real* __restrict__ sum, int B, int T, int C, float eps)
{
    extern __shared__ __align__(128) char shared[];
    constexpr int WARPS = BLOCK / WARP_SIZE;
    const int rows = B * T, warps = gridDim.x * WARPS, bytes = C * sizeof(Real);
    Real* const stages = reinterpret_cast<Real*>(shared) + warp_id() * STAGES * 2 * C;
    uint64_t* const full = reinterpret_cast<uint64_t*>(shared + WARPS * STAGES * 2 * bytes) + warp_id() * STAGES;
    const auto ask = [&](int row, int stage) {
        if (lane_id() != 0 || row >= rows) return;
        byte_barrier_expect(full + stage, 2 * bytes);
        bulk_copy(stages + stage * 2 * C, x + int64_t(row) * C, bytes, full + stage);
        bulk_copy(stages + (stage * 2 + 1) * C, residual + int64_t(row) * C, bytes, full + stage);
    };

    int row = blockIdx.x * WARPS + warp_id();
    for (int stage = 0; stage < STAGES; ++stage) {
        if (lane_id() == 0) byte_barrier_init(full + stage);
        ask(row + stage * warps, stage);
    }
    Vec<Real, VEC> w[VECTORS], b[VECTORS];
    load(w, weight, C);
    load(b, bias, C);
    __syncwarp();

    int stage = 0;
    unsigned parity = 0;
    for (; row < rows; row += warps) {
        byte_barrier_wait(full + stage, parity);
        Vec<Real, VEC> a[VECTORS], r[VECTORS];
        load(a, stages + stage * 2 * C, C);
        load(r, stages + (stage * 2 + 1) * C, C);
        __syncwarp();
        ask(row + STAGES * warps, stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;

        // The unrounded sum is what gets normalised: rows far off zero would otherwise lose their small differences.
        float n[VECTORS][VEC];
        float total = 0.0f;
        const int64_t first = int64_t(row) * C;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                n[i][j] = to_float(a[i][j]) + to_float(r[i][j]);
                a[i][j] = from_float<Real>(n[i][j]);
                if (column(i) < C) total += n[i][j];
            }
            if (column(i) < C) store(sum + first + column(i), a[i]);
        }
        const float mean = warp_sum(total) / C;

        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i)
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                const float centred = n[i][j] - mean;
                if (column(i) < C) squares += centred * centred;
            }
        const float rstd = rsqrtf(warp_sum(squares) / C + eps);

#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                a[i][j] = from_float<Real>((n[i][j] - mean) * rstd * to_float(w[i][j]) + to_float(b[i][j]));
            if (column(i) < C) store(out + first + column(i), a[i]);
        }
    }
}
