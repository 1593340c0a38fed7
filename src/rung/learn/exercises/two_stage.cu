/*---
idea   = "One block per row of a layernorm; each warp adds, then the warps' sums are added."
dtypes = ["f32"]
[[launch]]
kernel = "layernorm"
grid   = "B * T"
block  = 256
---*/
#include "rung.cuh"

__device__ float sum_of_block(float x)
{
    __shared__ float sums[8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    x = warp_sum(x);
    BLANK_1;  // the sums of an earlier call may still be read
    if (lane == 0) sums[warp] = x;
    __syncthreads();
    return warp_sum(BLANK_2);
}

extern "C" __global__ void layernorm(const float* x, const float* weight, const float* bias, float* out, int C, float eps)
{
    const float* row = x + int64_t(blockIdx.x) * C;
    float sum = 0.0f, squares = 0.0f;
    for (int c = threadIdx.x; c < C; c += blockDim.x) sum += row[c];
    const float mean = sum_of_block(sum) / C;
    for (int c = threadIdx.x; c < C; c += blockDim.x) squares += BLANK_3;
    const float rstd = rsqrtf(sum_of_block(squares) / C + eps);
    for (int c = threadIdx.x; c < C; c += blockDim.x)
        out[int64_t(blockIdx.x) * C + c] = (row[c] - mean) * rstd * weight[c] + bias[c];
}
