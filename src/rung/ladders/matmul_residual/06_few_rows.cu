/*---
idea   = "For up to eight rows: a matrix-vector product whose weights are requested, 16 bytes per lane, before the kernel waits for the one ahead (dependent launch); several warps share a row where there are few outputs."
expect = "Tiles would be empty but for one of their 64 rows. All of a warp's loads are in flight at once: the time of a launch for matrices of a few MB, 80 % of the bandwidth for large ones."
found  = "On an H200 2.7 us for one row of 3,072 by 768 weights in bf16 (torch 9.7), 10.0 for 8,192 by 2,048 (torch 15.6), 78 % of the bandwidth; before the next kernel could start this early 3.5 and 14.1."
dtypes = ["f32", "f16", "bf16"]
needs  = ["B * T <= 8", "C * sizeof_real % 16 == 0", "HELD <= 16", "B * T * C <= 50000",
          "WARPS % PARTS == 0", "B * T * ROWS <= 32"]
[tune]
WARPS = [8, 4, 16]
AT_ONCE = [0, 1, 2, 4]  # rows per warp; 0: by size
EARLY = [1, 0]  # whether the next kernel may start before this one has its input
[let]
VECTORS = "C * sizeof_real // 16"
DEEP    = "1 if VECTORS <= 256 else 2 if VECTORS <= 512 else 4 if VECTORS <= 1024 else 8"
PARTS   = "min(WARPS, 2 * DEEP if OC <= 1056 and VECTORS >= 64 * DEEP else DEEP)"  # so that few outputs occupy every multiprocessor
EACH    = "ceil_div(VECTORS, 32 * PARTS)"
ROWS    = "AT_ONCE if AT_ONCE > 0 else 1 if OC * PARTS <= 4224 else 4 if OC >= 32768 and EACH <= 4 else 2 if EACH <= 8 else 1"
HELD    = "EACH * ROWS"
[define]
M     = "B * T"
C     = "C"
ROWS  = "ROWS"
PARTS = "PARTS"
[[launch]]
kernel = "matmul_residual"
grid   = "ceil_div(OC, WARPS // PARTS * ROWS)"
block  = "32 * WARPS"
shared = "4 * B * T * C"
pdl    = true
[model]
serves = { step = "2 if rows <= 8 else 0" }
---*/
#include "row_streams.cuh"

using namespace few_rows;

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_residual(const Real* __restrict__ x, const Real* __restrict__ weight, const Real* __restrict__ bias,
                    const Real* residual, Real* out, int OC)
{
    const Place place;
    const bool mine = place.mine(OC);
    const float added = mine && bias != nullptr ? to_float(bias[place.row]) : 0.0f;
    const float sum = product<false>(x, nullptr, weight, place.first, OC, 0.0f) + added;
    if (!mine) return;
    const size_t at = size_t(place.m) * OC + place.row;
    out[at] = from_float<Real>(sum + to_float(residual[at]));
}
