/*---
idea   = "Eight bits on the tensor cores: the same tiles, mma.sync of 16 x 8 x 32 with integer sums, and the scales of row and column at the end."
expect = "Twice the products per instruction and half the bytes of 16 bits. The sums are exact; the error is the quantisation's."
found  = "2.1 times the 16-bit rung at 4096 on an H200 (953 to 463 us), 1.6 to 1.7 times for GPT-2's products; torch's int_mm takes 309 us."
provenance = "The lecture's list of low-precision instructions: IMMA, eight-bit integers on tensor cores (sm_75)."
dtypes = ["bf16", "f16", "f32"]
products = "i8"
needs  = ["sm >= 80", "C % 16 == 0"]
align  = 16
[[launch]]
kernel = "product"
grid   = ["ceil_div(OC, 64)", "ceil_div(M, 64)"]
block  = 128
---*/
#include "low_tile.cuh"

__device__ __forceinline__ void mma_m16n8k32_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    product(const int8_t* x_q, const int8_t* w_q, const float* x_scale, const float* w_scale, Real* out, int M, int OC, int C)
{
    int sums[2][4][4] = {};
    tile_product(x_q, w_q, M, OC, C, sums, mma_m16n8k32_s8);
    each_output(M, OC, sums, [&](int row, int column, int sum) {
        out[int64_t(row) * OC + column] = from_float<Real>(float(sum) * x_scale[row] * w_scale[column]);
    });
}
