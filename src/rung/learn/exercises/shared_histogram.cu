/*---
idea   = "Each block counts in shared memory, and adds its counts to the whole at the end."
dtypes = ["f32"]
zeroed = ["out"]
needs  = "BINS <= 256"
[[launch]]
kernel = "histogram"
grid   = 2
block  = 256
---*/
#include "rung.cuh"

extern "C" __global__ void histogram(const int* codes, int* out, int N, int BINS)
{
    __shared__ int counts[256];
    for (int b = threadIdx.x; b < BINS; b += 256) counts[b] = 0;
    BLANK_1;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < N; i += gridDim.x * 256) atomicAdd(BLANK_2, 1);
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += 256) BLANK_3;
}
