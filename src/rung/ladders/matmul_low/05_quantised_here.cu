/*---
idea   = "The cost of quantisation: activations come as floats, and a first kernel finds each row's largest magnitude and rounds the row to eight bits."
expect = "A pass over x before the product: little compared with a large product, more than the product saves for few columns."
found  = "As expected: 33 us more than rung 4 at 4096 on an H200 (463 to 496), 15 us for 8192 rows of gpt2, 3 to 4 us for few rows, a fifth of their time."
dtypes = ["bf16"]
products = "i8"
needs  = ["sm >= 80", "C % 16 == 0"]
align  = 16
buffers.codes = { shape = ["M", "C"], dtype = "i8" }
buffers.scale = { shape = ["M"], dtype = "f32" }
[[launch]]
kernel = "quantise"
grid   = "M"
block  = 128
[[launch]]
kernel = "product"
grid   = ["ceil_div(OC, 64)", "ceil_div(M, 64)"]
block  = 128
---*/
#include "low_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) quantise(const Real* x, int8_t* codes, float* scale, int C)
{
    const Real* row = x + int64_t(blockIdx.x) * C;
    float largest = 1e-30f * 127.0f;
    for (int c = threadIdx.x; c < C; c += THREADS) largest = fmaxf(largest, fabsf(to_float(row[c])));
    largest = block_max(largest);
    const float unit = largest / 127.0f;
    for (int c = threadIdx.x; c < C; c += THREADS) codes[int64_t(blockIdx.x) * C + c] = int8_t(rintf(to_float(row[c]) / unit));
    if (threadIdx.x == 0) scale[blockIdx.x] = unit;
}

__device__ __forceinline__ void mma_m16n8k32_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    product(const int8_t* codes, const int8_t* w_q, const float* scale, const float* w_scale, Real* out, int M, int OC, int C)
{
    int sums[2][4][4] = {};
    tile_product(codes, w_q, M, OC, C, sums, mma_m16n8k32_s8);
    each_output(M, OC, sums, [&](int row, int column, int sum) {
        out[int64_t(row) * OC + column] = from_float<Real>(float(sum) * scale[row] * w_scale[column]);
    });
}
