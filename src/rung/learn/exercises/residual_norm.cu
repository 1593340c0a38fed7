/*---
idea   = "The residual is added and the sum is normalised in one kernel; both results are stored."
dtypes = ["f32"]
[[launch]]
kernel = "layernorm"
grid   = "B * T"
block  = 32
shared = "4 * C"
---*/
#include "rung.cuh"

extern "C" __global__ void layernorm(const float* x, const float* residual, const float* weight, const float* bias, float* out,
                                     float* sum, int C, float eps)
{
    extern __shared__ float row[];  // (C), so that the sum is not read from memory again
    const int64_t first = int64_t(blockIdx.x) * C;
    float total = 0.0f, squares = 0.0f;
    for (int c = threadIdx.x; c < C; c += 32) {
        row[c] = BLANK_1;
        sum[first + c] = row[c];
        total += row[c];
    }
    const float mean = warp_sum(total) / C;
    for (int c = threadIdx.x; c < C; c += 32) squares += (row[c] - mean) * (row[c] - mean);
    const float rstd = rsqrtf(BLANK_2 + eps);
    for (int c = threadIdx.x; c < C; c += 32) out[first + c] = BLANK_3;
}
