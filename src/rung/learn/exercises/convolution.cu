/*---
idea   = "A 3 x 3 convolution: a tile with a margin of one on all sides."
dtypes = ["f32"]
[[launch]]
kernel = "convolve"
grid   = ["ceil_div(W, 32)", "ceil_div(H, 8)"]
block  = [32, 8]
---*/
#include "rung.cuh"

extern "C" __global__ void convolve(const float* x, const float* weight, float* out, int H, int W)
{
    __shared__ float tile[8 + 2][32 + 2];
    const int h0 = blockIdx.y * 8, w0 = blockIdx.x * 32;
    for (int i = threadIdx.y * 32 + threadIdx.x; i < 10 * 34; i += 256) {
        const int h = h0 + i / 34 - 1, w = w0 + BLANK_1;
        tile[i / 34][i % 34] = BLANK_2 ? x[int64_t(h) * W + w] : 0.0f;
    }
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) sum += weight[3 * i + j] * BLANK_3;
    const int h = h0 + threadIdx.y, w = w0 + threadIdx.x;
    if (h < H && w < W) out[int64_t(h) * W + w] = sum;
}
