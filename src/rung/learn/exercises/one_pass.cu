/*---
idea   = "Mean and variance in one loop over the row: each lane keeps a count, a mean and a sum of squares, and lanes merge them."
dtypes = ["f32"]
[[launch]]
kernel = "layernorm"
grid   = "B * T"
block  = 32
---*/
#include "rung.cuh"

extern "C" __global__ void layernorm(const float* x, const float* weight, const float* bias, float* out, int C, float eps)
{
    const float* row = x + int64_t(blockIdx.x) * C;
    float count = 0.0f, mean = 0.0f, squares = 0.0f;  // squares: the sum of (x - mean)^2 so far
    for (int c = threadIdx.x; c < C; c += 32) {
        const float difference = row[c] - mean;
        count += 1.0f;
        mean += difference / count;
        squares += BLANK_1;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other_count = __shfl_xor_sync(0xffffffff, count, offset), all = count + other_count;
        const float other_mean = __shfl_xor_sync(0xffffffff, mean, offset), apart = other_mean - mean;
        squares += __shfl_xor_sync(0xffffffff, squares, offset);
        if (all > 0.0f) squares += BLANK_2;
        mean = all > 0.0f ? (count * mean + other_count * other_mean) / all : 0.0f;
        count = all;
    }
    const float rstd = rsqrtf(squares / C + eps);
    for (int c = threadIdx.x; c < C; c += 32)
        out[int64_t(blockIdx.x) * C + c] = (row[c] - mean) * rstd * weight[c] + bias[c];
}
