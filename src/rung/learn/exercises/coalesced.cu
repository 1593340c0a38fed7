/*---
idea   = "Each thread copies EACH elements; neighbouring lanes read neighbouring addresses."
dtypes = ["f32"]
[define]
EACH = 8
[[launch]]
kernel = "copy"
grid   = "ceil_div(N, 8 * 128)"
block  = 128
---*/
#include "rung.cuh"

extern "C" __global__ void copy(const float* x, float* out, int N)
{
    const int64_t first = int64_t(blockIdx.x) * blockDim.x * EACH;  // of the block
    for (int k = 0; k < EACH; k++) {
        const int64_t i = first + BLANK_1;
        if (i < N) out[i] = x[i];
    }
}
