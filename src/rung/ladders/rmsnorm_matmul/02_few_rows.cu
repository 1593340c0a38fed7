/*---
idea   = "For up to eight rows: 16 bytes per load, all of a warp's weights requested before it waits for the kernel ahead (dependent launch), and x times the norm's weight in shared memory for the whole block."
expect = "Memory is never idle between two kernels, and 64 KB are in flight per multiprocessor: 80 % of the bandwidth for matrices of 16 MB and more, a launch's 2 us for small ones."
found  = "On an H200 one row by a gated MLP of Llama-3.2-1B takes 17.4 us in bf16 (torch 28.8), its head 119 (torch 133), a QKV product 4.6 (torch 11.6), a small MLP 2.3 (torch 11.8). With EARLY a step of SmolLM2-135M takes 340 us instead of 411, of Qwen3-0.6B 537 instead of 676: weights of two launches ahead are in flight."
dtypes = ["f32", "f16", "bf16"]
needs  = ["B * T <= 8", "C * sizeof_real % 16 == 0", "HELD <= 16", "B * T * C <= 50000",
          "ROWS % (1 + gated) == 0", "WARPS % PARTS == 0", "B * T * ROWS <= 32"]
[tune]
WARPS = [8, 4, 16]
AT_ONCE = [0, 1, 2, 4]  # rows per warp; 0: by size
EARLY = [1, 0]  # whether the next kernel may start before this one has its input
[let]
N       = "(1 + gated) * OC"
VECTORS = "C * sizeof_real // 16"
DEEP    = "1 if VECTORS <= 256 else 2 if VECTORS <= 512 else 4 if VECTORS <= 1024 else 8"
PARTS   = "min(WARPS, 2 * DEEP if N <= 1056 and VECTORS >= 64 * DEEP else DEEP)"  # so that few outputs occupy every multiprocessor
EACH    = "ceil_div(VECTORS, 32 * PARTS)"
ROWS    = "AT_ONCE if AT_ONCE > 0 else max(1 + gated, 1 if N * PARTS <= 4224 else 4 if N >= 32768 and EACH <= 4 else 2 if EACH <= 8 else 1)"
HELD    = "EACH * ROWS"
[define]
M     = "B * T"
C     = "C"
ROWS  = "ROWS"
PARTS = "PARTS"
GATED = "gated"
[[launch]]
kernel = "rmsnorm_matmul"
grid   = "ceil_div(N, WARPS // PARTS * ROWS)"
block  = "32 * WARPS"
shared = "4 * B * T * C"
pdl    = true
[model]
serves = { step = "2 if rows <= 8 else 0" }
---*/
#include "row_streams.cuh"

using namespace few_rows;

extern "C" __global__ void __launch_bounds__(THREADS)
    rmsnorm_matmul(const Real* __restrict__ x, const Real* __restrict__ norm, const Real* __restrict__ weight,
                   const Real* __restrict__ bias, Real* __restrict__ out, int OC, float eps)
{
    const int rows = (1 + GATED) * OC;
    const Place place;
    const bool mine = place.mine(rows);
    const float added = mine && bias != nullptr ? to_float(bias[place.row]) : 0.0f;
    float sum = product<true>(x, norm, weight, place.first, rows, eps) + added;
    if (GATED) {
        const float up = __shfl_down_sync(ALL_LANES, sum, 1);
        sum = __fdividef(sum, 1.0f + __expf(-sum)) * up;
        if (mine && place.row % 2 == 0) out[size_t(place.m) * OC + place.row / 2] = from_float<Real>(sum);
    } else if (mine) {
        out[size_t(place.m) * OC + place.row] = from_float<Real>(sum);
    }
}
