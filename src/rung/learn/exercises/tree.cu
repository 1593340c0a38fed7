/*---
idea   = "One block per row; its threads add in shared memory."
dtypes = ["f32"]
[tune]
BLOCK = [128, 256]
[[launch]]
kernel = "row_sum"
grid   = "B"
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void row_sum(const float* x, float* out, int N)
{
    __shared__ float part[BLOCK];
    float sum = 0.0f;
    for (int n = threadIdx.x; n < N; n += BLANK_1) sum += x[int64_t(blockIdx.x) * N + n];
    part[threadIdx.x] = sum;
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        BLANK_2;
        if (threadIdx.x < half) part[threadIdx.x] += BLANK_3;
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
