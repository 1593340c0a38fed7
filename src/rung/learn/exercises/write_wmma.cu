/*---
idea   = "A product on tensor cores with WMMA, one warp for each tile of 16 x 16: you write the whole kernel."
dtypes = ["f16"]
needs  = "sm >= 70"
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, 16)", "ceil_div(B * T, 16)"]
block  = 32
---*/
#include "rung.cuh"
#include <mma.h>

using namespace nvcuda;

extern "C" __global__ void matmul(const __half* x, const __half* weight, const __half* bias, __half* out, int B, int T, int C,
                                  int OC)
{
    BLANK_1
}
