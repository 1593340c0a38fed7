/*---
idea   = "When 64 values are left one warp finishes alone: six steps unrolled, without block barriers."
expect = "Six of the eight barriers (BLOCK 256) become warp barriers: a visible part of the time of short rows, nothing for long ones."
found  = "As expected: 91.1 -> 73.4 us (1.24x) at b65536n1024 in f32 on an H200, 86 % of the copy rate and 0.98x torch's speed; a tie for the long rows of b16n1m (139 us, 0.17x torch's)."
provenance = "The attention milestone unrolled its last warp and dropped the barriers. Since Volta the lanes may drift apart, so __syncwarp() takes their place."
dtypes = ["f32", "f16", "bf16"]
needs  = "BLOCK >= 64"
[tune]
BLOCK = [256, 128, 512, 1024]
[[launch]]
kernel = "row_sum"
grid   = "B"
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void row_sum(const Real* x, float* out, int N)
{
    __shared__ float partial[BLOCK];
    const int t = threadIdx.x;
    const Real* row = x + (size_t)blockIdx.x * N;
    float sum = 0.0f;
    for (int n = t; n < N; n += BLOCK) sum += to_float(row[n]);
    partial[t] = sum;

    for (int stride = BLOCK / 2; stride > 32; stride /= 2) {
        __syncthreads();
        if (t < stride) partial[t] += partial[t + stride];
    }
    __syncthreads();
    if (t >= 32) return;
    sum = partial[t] + partial[t + 32];
#pragma unroll
    for (int stride = 16; stride >= 1; stride /= 2) {
        partial[t] = sum;
        __syncwarp();
        sum += partial[t ^ stride];  // every lane adds, which avoids a condition
        __syncwarp();
    }
    if (t == 0) out[blockIdx.x] = sum;
}
