/*---
idea   = "mma.sync: the lanes of a warp hold pieces of 16 x 8 x 16 products in a documented order."
dtypes = ["f16"]
needs  = "sm >= 80"
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, 8)", "ceil_div(B * T, 16)"]
block  = 32
---*/
#include "rung.cuh"

__device__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The elements at column and column + 1 of a row, in one register; zeros beyond the matrix.
__device__ uint32_t pair(const __half* matrix, int row, int rows, int column, int columns)
{
    const auto at = [&](int c) { return row < rows && c < columns ? matrix[int64_t(row) * columns + c] : __half(0.0f); };
    const __half2 both = __halves2half2(at(column), at(column + 1));
    return *reinterpret_cast<const uint32_t*>(&both);
}

extern "C" __global__ void matmul(const __half* x, const __half* weight, const __half* bias, __half* out, int B, int T, int C,
                                  int OC)
{
    const int group = BLANK_1, within = BLANK_2;  // of the lane: 8 groups of 4
    const int m = blockIdx.y * 16 + group, n = blockIdx.x * 8;
    float d[4] = {};
    for (int c0 = 0; c0 < C; c0 += 16) {
        const int c = c0 + 2 * within;
        const uint32_t a[4] = {pair(x, m, B * T, c, C), pair(x, m + 8, B * T, c, C), pair(x, m, B * T, c + 8, C),
                               pair(x, m + 8, B * T, c + 8, C)};
        const uint32_t b[2] = {pair(weight, n + group, OC, c, C), pair(weight, n + group, OC, c + 8, C)};
        mma(d, a, b);
    }
    for (int i = 0; i < 4; i++) {  // d[0] and d[1] lie side by side, d[2] and d[3] eight rows below
        const int row = BLANK_3, column = n + 2 * within + i % 2;
        if (row < B * T && column < OC)
            out[int64_t(row) * OC + column] = __float2half(d[i] + (bias ? __half2float(bias[column]) : 0.0f));
    }
}
