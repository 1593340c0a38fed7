/*---
idea   = "The first index of the largest number of a row, in one loop: a warp per row."
dtypes = ["f32"]
[[launch]]
kernel = "argmax"
grid   = "B"
block  = 32
---*/
#include "rung.cuh"

extern "C" __global__ void argmax(const float* x, int* out, int N)
{
    const float* row = x + int64_t(blockIdx.x) * N;
    float best = -INFINITY;
    int index = N;
    for (int n = threadIdx.x; n < N; n += 32)
        if (BLANK_1) best = row[n], index = n;
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(0xffffffff, best, offset);
        const int other_index = __shfl_xor_sync(0xffffffff, index, offset);
        if (BLANK_2) best = other, index = other_index;
    }
    if (threadIdx.x == 0) out[blockIdx.x] = index;
}
