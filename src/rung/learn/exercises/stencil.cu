/*---
idea   = "A mean over seven neighbours: a tile with a margin of three on either side."
dtypes = ["f32"]
[[launch]]
kernel = "stencil"
grid   = "ceil_div(N, 128)"
block  = 128
---*/
#include "rung.cuh"

extern "C" __global__ void stencil(const float* x, float* out, int N)
{
    __shared__ float tile[128 + 6];
    const int i = blockIdx.x * 128 + threadIdx.x;
    tile[threadIdx.x + 3] = i < N ? x[i] : 0.0f;
    if (threadIdx.x < 3) {
        const int left = i - 3, right = BLANK_1;
        tile[threadIdx.x] = left >= 0 ? x[left] : 0.0f;
        tile[BLANK_2] = right < N ? x[right] : 0.0f;
    }
    BLANK_3;
    float sum = 0.0f;
    for (int k = 0; k < 7; k++) sum += tile[threadIdx.x + k];
    if (i < N) out[i] = sum / 7.0f;
}
