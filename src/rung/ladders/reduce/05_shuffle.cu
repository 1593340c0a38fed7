/*---
idea   = "Lanes exchange sums by shuffles; each warp writes one value to shared memory, and the first warp adds those."
expect = "Two stages of five shuffles and one barrier replace the tree: short rows gain, long rows are bound by their loads."
found  = "The short rows gain nothing: a tie with the rung before, 73.5 against 73.4 us at b65536n1024 in f32 on an H200, 0.98x torch's speed. A tie at b16n1m too (139 us, 0.16x torch's). The tree's cost was in its barriers, which were already gone; this is inferred."
provenance = "The two-stage warp reduction with coarsening of the course's second report; __shfl_down_sync in its third."
dtypes = ["f32", "f16", "bf16"]
needs  = "BLOCK % 32 == 0"
[tune]
BLOCK = [256, 32, 64, 128, 512, 1024]
[[launch]]
kernel = "row_sum"
grid   = "B"
block  = "BLOCK"
---*/
#include "rung.cuh"

__device__ inline float sum_of_warp(float sum)
{  // the whole sum arrives in lane 0
    for (int offset = 16; offset >= 1; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    return sum;
}

extern "C" __global__ void row_sum(const Real* x, float* out, int N)
{
    __shared__ float of_warp[BLOCK / 32];
    const int t = threadIdx.x;
    const Real* row = x + (size_t)blockIdx.x * N;
    float sum = 0.0f;
    for (int n = t; n < N; n += BLOCK) sum += to_float(row[n]);

    sum = sum_of_warp(sum);
    if (lane_id() == 0) of_warp[warp_id()] = sum;
    __syncthreads();
    if (warp_id() > 0) return;
    sum = sum_of_warp(t < BLOCK / 32 ? of_warp[t] : 0.0f);
    if (t == 0) out[blockIdx.x] = sum;
}
