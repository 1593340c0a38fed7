/*---
idea   = "Tensor cores: cp.async brings x in as it is, and each thread normalises the pieces it has copied, in place, after they arrive and before the barrier that publishes them. A small kernel has computed mean and deviation of every row."
expect = "No more barriers than in the plain pipeline. The work per element runs on other units than the products, and other warps hide it."
found  = "On an H200 159 -> 32.2 us (4.95x) at b4t64 and 1.01 ms -> 159 us (6.33x) at b8t1024 in bf16, 0.31x and 0.43x torch's speed. The work does not hide: 23 % of the measured rate at b8t1024, where the plain pipeline has 42 % (matmul/14, another run). Presumably too few warps hide each other's latency: 249 registers per thread leave 8 on a multiprocessor."
provenance = "ours; on rung 14 of matmul"
from   = "matmul/14"
inherit = ["tune", "define", "bind"]
rewrite = "Of the parent's main loop only the parts in include/ stay: each thread now normalises between a copy's arrival and its use."
dtypes = ["bf16", "f16", "tf32"]
needs  = [
  "gelu == 0",
  "sm >= 80",
  "BM % WM == 0 and BN % WN == 0",
  "BK * sizeof_real == 64 or BK * sizeof_real == 128",
  "BM // WM * (BN // WN) * 32 // (BK * sizeof_real // 16) % 8 == 0",  # the swizzle repeats every eight rows
  "BM // WM * (BN // WN) <= 16",
  "(BM * BK * sizeof_real // 16) % (BM // WM * (BN // WN) * 32) == 0",
  "(BN * BK * sizeof_real // 16) % (BM // WM * (BN // WN) * 32) == 0",
  "STAGES * (BM + BN) * BK * sizeof_real + BM * 8 <= 232448",
]
[buffers.statistics]
shape = ["B", "T", 2]
dtype = "f32"
[[launch]]
kernel = "row_statistics"
grid   = "ceil_div(B * T, 4)"
block  = [32, 4]
[[launch]]
kernel = "layernorm_matmul"
grid   = ["ceil_div(OC, BN)", "ceil_div(B * T, BM)"]
block  = "BM // WM * (BN // WN) * 32"
shared = "STAGES * (BM + BN) * BK * sizeof_real"
[model]
serves = { fused = 1 }
---*/
#include "mma_tile.cuh"

using namespace mma_tile;

// One warp per row: (mean, 1 / deviation).
extern "C" __global__ void row_statistics(const Real* x, float2* statistics, int M, int C, float eps)
{
    const int m = blockIdx.x * blockDim.y + threadIdx.y;
    if (m >= M) return;
    const Real* row = x + size_t(m) * C;
    float sum = 0.0f, square = 0.0f;
    for (int c = threadIdx.x; c < C; c += WARP_SIZE) sum += to_float(row[c]);
    const float mean = warp_sum(sum) / C;
    for (int c = threadIdx.x; c < C; c += WARP_SIZE) {
        const float centred = to_float(row[c]) - mean;
        square += centred * centred;
    }
    const float variance = warp_sum(square) / C;
    if (threadIdx.x == 0) statistics[m] = make_float2(mean, rsqrtf(variance + eps));
}

// Normalises this thread's pieces of a tile of x in place. Its pieces share their columns, so that a vector each of
// ln_weight and ln_bias serves all of them.
struct Normalise
{
    const TileCopy<BM>& copy;
    const float2* rows;  // mean and 1 / deviation of the tile's rows, in shared memory
    const Real *ln_weight, *ln_bias;
    int C;

    __device__ __forceinline__ void operator()(char* tile, int c0) const
    {
        const int c = c0 + copy.c_thread;
        if (c >= C) return;
        float w[VEC], b[VEC];
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            w[j] = ALIGNED || c + j < C ? to_float(ln_weight[c + j]) : 0.0f;
            b[j] = ALIGNED || c + j < C ? to_float(ln_bias[c + j]) : 0.0f;
        }
#pragma unroll  // perhaps never one turn: COUNT is fixed by the tile
        for (int i = 0; i < TileCopy<BM>::COUNT; i++) {
            Real* piece = reinterpret_cast<Real*>(copy.place(tile, i));
            const float2 row = rows[threadIdx.x / CHUNKS + i * TileCopy<BM>::STRIDE];
            Vec16<Real> v = load_vec(piece);
#pragma unroll
            for (int j = 0; j < VEC; j++) v[j] = from_float<Real>((to_float(v[j]) - row.x) * row.y * w[j] + b[j]);
            store_vec(piece, v);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    layernorm_matmul(const Real* x, const Real* ln_weight, const Real* ln_bias, const float2* statistics, const Real* weight,
                     const Real* bias, Real* out, int M, int OC, int C)
{
    extern __shared__ __align__(128) char smem[];
    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
    const Place place;
    const TileCopy<BM> x_copy(x, m0, M, C);

    __shared__ float2 rows[BM];
    for (int r = threadIdx.x; r < BM; r += THREADS) rows[r] = statistics[min(m0 + r, M - 1)];
    __syncthreads();
    const Normalise normalise = {x_copy, rows, ln_weight, ln_bias, C};

    Sums sum = {};
    multiply_tiles(sum, smem, x_copy, TileCopy<BN>(weight, n0, OC, C), place, 0, ceil_div(C, BK), C, normalise);
    store_tile(sum, place, m0, n0, M, OC, bias, out, Unchanged{});
}
