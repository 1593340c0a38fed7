/*---
idea   = "Of every four neighbouring weights two are zero (2:4 sparsity): mma.sp multiplies the two others, with two bits of metadata each that select the matching elements."
expect = "Twice the depth per instruction, and 9/16 of the weights' bytes. The sparse operand must be the left one, so the output is transposed."
found  = "1.2 times the dense rung at 4096 on an H200 (953 to 785 us), 1.3 for 8192 rows of gpt2 and 1.6 for 256 and fewer, where bytes of weights count: the loads of x and the stores stay."
provenance = "The lecture's list: 2:4 structured sparsity (sm_80)."
from   = "matmul_low/3"
rewrite = "The sparse operand must be the left one, so that the output is transposed, with its fragments and its epilogue."
dtypes = ["f16", "bf16"]
products = "2:4"
needs  = ["sm >= 80", "C % 32 == 0"]
align  = 16
[[launch]]
kernel = "product"
grid   = ["ceil_div(M, 64)", "ceil_div(OC, 64)"]
block  = 128
---*/
#include "low_tile.cuh"

// d += a * b for a tile of 16 x 8, 32 deep, where a holds two of four. The first two lanes of every four provide the metadata of
// rows g and g + 8 for 16 columns each, two bits per element, row g in the lower half.
__device__ __forceinline__ void mma_sp_m16n8k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[4], uint32_t places)
{
#if defined(RUNG_BF16)
#define FORMAT "bf16.bf16"
#else
#define FORMAT "f16.f16"
#endif
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." FORMAT ".f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0x0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(places));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    product(const Real* x, const Real* w_kept, const int* w_places, Real* out, int M, int OC, int C)
{
    __shared__ __align__(16) char w_tile[2][BM][PITCH];
    __shared__ __align__(16) char x_tile[2][BN][2 * DEEP + 16];
    const int lane = lane_id(), warp = warp_id(), n0 = blockIdx.y * BM, m0 = blockIdx.x * BN;
    const int rows = warp / 2 * 32, columns = warp % 2 * 32, words = C / 32, steps = ceil_div(C, 64);
    const auto load = [&](int step) {
        load_rows(w_tile[step % 2], reinterpret_cast<const char*>(w_kept), n0, OC, int64_t(step) * DEEP, int64_t(C));
        load_rows(x_tile[step % 2], reinterpret_cast<const char*>(x), m0, M, int64_t(step) * 2 * DEEP, int64_t(C) * 2);
        cp_async_commit();
    };
    const auto places_of = [&](int row, int word) {
        return row < OC && word < words ? uint32_t(w_places[int64_t(row) * words + word]) >> lane % 2 * 16 & 0xffff : 0x4444u;
    };
    float sums[2][4][4] = {};
    load(0);
    for (int step = 0; step < steps; step++) {
        cp_async_wait<0>();
        __syncthreads();  // the stage has arrived, and the other one is free
        if (step + 1 < steps) load(step + 1);
#pragma unroll
        for (int half = 0; half < 2; half++) {  // 32 columns
            uint32_t b[4][4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                ldmatrix_x4(b[j], &x_tile[step % 2][columns + 8 * j + lane % 8][half * 64 + lane / 8 * 16]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t a[4];
                ldmatrix_x4(a, &w_tile[step % 2][rows + 16 * i + lane % 16][half * 32 + lane / 16 * 16]);
                const int row = n0 + rows + 16 * i + lane / 4, word = step * 2 + half;
                const uint32_t places = places_of(row, word) | places_of(row + 8, word) << 16;
#pragma unroll
                for (int j = 0; j < 4; j++) mma_sp_m16n8k32(sums[i][j], a, b[j], places);
            }
        }
    }
    each_output(OC, M, sums, [&](int column, int row, float sum) { out[int64_t(row) * OC + column] = from_float<Real>(sum); });
}
