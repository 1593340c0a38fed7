/*---
idea   = "The same tree folded from the far end: the first half adds the second half, then the first quarter the second."
expect = "The active threads are always the first ones, so whole warps retire and the rest do not diverge until the last five steps; the modulo is gone as well."
found  = "Hardly anything: 93.1 -> 91.1 us (1.02x) at b65536n1024 in f32 on an H200, 0.79x torch's speed, and a tie at b16n1m (139 us, 0.16x). So divergence was not the bottleneck; inferred from the gain of rung 4, it was the barriers."
provenance = "The tree of the attention milestone (strides that are multiples of 32) and of the course's third report (stride = blockDim.x / 2, halved)."
dtypes = ["f32", "f16", "bf16"]
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

    for (int stride = BLOCK / 2; stride >= 1; stride /= 2) {
        __syncthreads();
        if (t < stride) partial[t] += partial[t + stride];
    }
    if (t == 0) out[blockIdx.x] = partial[0];
}
