/*---
idea = "mma.sync with fragments loaded by hand."
dtypes = ["f16"]
needs = "C % 2 == 0"
align = 4
[bind]
rows = "B * T"
[[launch]]
kernel = "mma_matmul"
grid = ["ceil_div(OC, 8)", "ceil_div(B * T, 16)"]
block = 32
---*/
// The linear layer on tensor cores through PTX: mma.m16n8k16, one warp per 16 x 8 tile of results.
#include <cstdint>
#include <cuda_fp16.h>

__device__ __forceinline__ void mma16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ uint32_t pair(const half* p, int row, int rows, int k, int C) {
    if (row >= rows || k >= C) return 0u;
    return *reinterpret_cast<const uint32_t*>(p + (size_t)row * C + k);
}

__global__ void mma_matmul(const half* x, const half* weight, half* out, int rows, int C, int OC) {
    const int lane = threadIdx.x, group = lane >> 2, inside = lane & 3;
    const int row = blockIdx.y * 16 + group, col = blockIdx.x * 8 + group;
    float d[4] = {0.f, 0.f, 0.f, 0.f};
    for (int k = 0; k < C; k += 16) {
        const int at = k + inside * 2;
        uint32_t a[4] = {pair(x, row, rows, at, C), pair(x, row + 8, rows, at, C), pair(x, row, rows, at + 8, C),
                         pair(x, row + 8, rows, at + 8, C)};
        uint32_t b[2] = {pair(weight, col, OC, at, C), pair(weight, col, OC, at + 8, C)};
        mma16816(d, a, b);
    }
    for (int i = 0; i < 4; ++i) {
        const int r = row + (i / 2) * 8, c = blockIdx.x * 8 + inside * 2 + i % 2;
        if (r < rows && c < OC) out[(size_t)r * OC + c] = __float2half_rn(d[i]);
    }
}
