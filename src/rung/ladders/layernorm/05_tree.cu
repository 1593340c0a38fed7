/*---
idea   = "One block per row: each thread adds every BLOCK-th column, then a tree in shared memory adds the partial sums in log2(BLOCK) steps, half the threads each time."
expect = "Neighbouring threads read neighbouring columns, and 256 threads share one thread's work: ten times faster or more. The two trees of eight barriers each are then the bottleneck."
provenance = "ECE 408 milestone 3, Reduction: LayerNorm (20x there, with one thread per column; here any C)."
found  = "The ladder's largest gain: 534 -> 38.7 us (13.8x) at b8t1024 in f32 on an H200 and 519 -> 4.54 us (114x) at b4t64, where the report had 20x; there a tie with torch. Still only 30 % of the copy rate and 0.68x torch's speed at b8t1024."
dtypes = ["f32", "f16", "bf16"]
needs  = "BLOCK & (BLOCK - 1) == 0"
[tune]
BLOCK = [256, 4, 8, 16, 32, 64, 128, 512, 1024]
[[launch]]
kernel = "layernorm"
grid   = "B * T"
block  = "BLOCK"
---*/
#include "rung.cuh"

__device__ float tree_sum(float x)
{
    __shared__ float partial[BLOCK];
    const int i = threadIdx.x;
    partial[i] = x;
    for (int stride = BLOCK / 2; stride > 0; stride /= 2) {
        __syncthreads();
        if (i < stride) partial[i] += partial[i + stride];
    }
    __syncthreads();
    const float sum = partial[0];
    __syncthreads();  // all have read it before the next tree starts
    return sum;
}

extern "C" __global__ void layernorm(const Real* __restrict__ x, const Real* __restrict__ weight, const Real* __restrict__ bias,
                                     Real* __restrict__ out, int C, float eps)
{
    const Real* __restrict__ in = x + int64_t(blockIdx.x) * C;
    Real* __restrict__ normed = out + int64_t(blockIdx.x) * C;

    float sum = 0.0f;
    for (int c = threadIdx.x; c < C; c += BLOCK) sum += to_float(in[c]);
    const float mean = tree_sum(sum) / C;

    float squares = 0.0f;
    for (int c = threadIdx.x; c < C; c += BLOCK) {
        const float centred = to_float(in[c]) - mean;
        squares += centred * centred;
    }
    const float rstd = rsqrtf(tree_sum(squares) / C + eps);

    for (int c = threadIdx.x; c < C; c += BLOCK)
        normed[c] = from_float<Real>((to_float(in[c]) - mean) * rstd * to_float(weight[c]) + to_float(bias[c]));
}
