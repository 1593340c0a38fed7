/*---
idea = "Two warps add to one place, and a variable is called atomic."
dtypes = ["f32"]
[bind]
N = "B * T * C"
[[launch]]
kernel = "k"
grid = "ceil_div(B * T * C, 128)"
block = 128
---*/
#include "rung.cuh"

extern "C" __global__ void k(const Real* a, const Real* b, Real* out, int N)
{
    __shared__ float atomic_sum[64];  // no operation on it is atomic
    const int i = blockIdx.x * 128 + threadIdx.x, place = threadIdx.x % 64;
    if (threadIdx.x < 64) atomic_sum[place] = 0.0f;
    __syncthreads();
    atomic_sum[place] += 1.0f;
    __syncthreads();
    if (i < N) out[i] = a[i] + b[i] + (atomic_sum[place] - 2.0f);
}
