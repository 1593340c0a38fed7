/*---
idea   = "The report's tree: one thread per column, a block of C threads, and ceiling halves, so that C need not be a power of two."
expect = "No coarsening and no loop over columns, and a barrier for each of ten levels: slower than rung 5, whose 256 threads add three columns each before a tree of eight levels."
found  = "4.57 us at b4t64 in f32 on an H200, 125x over rung 1, about rung 5's time."
provenance = "ECE 408 milestone 3, Reduction: LayerNorm, a block of (C, 1, 1) and a grid of (T, B, 1); 7274 -> 355 us on an A40."
from   = "layernorm/5"
side_experiment = "The report's kernel, beside rung 5."
dtypes = ["f32", "f16", "bf16"]
needs  = "C <= 1024"
[[launch]]
kernel = "layernorm"
grid   = ["T", "B"]
block  = "C"
---*/
#include "rung.cuh"

extern "C" __global__ void layernorm(const Real* x, const Real* weight, const Real* bias, Real* out, int T, int C, float eps)
{
    __shared__ float shared_mem[1024];
    const int tx = threadIdx.x;
    const int64_t at = (int64_t(blockIdx.y) * T + blockIdx.x) * C + tx;
    const float value = to_float(x[at]);

    shared_mem[tx] = value;
    for (int threads = blockDim.x; threads > 1; threads = (threads + 1) / 2) {
        __syncthreads();
        const int stride = (threads + 1) / 2;
        if (tx < stride && tx + stride < threads) shared_mem[tx] += shared_mem[tx + stride];
    }
    __syncthreads();
    const float centred = value - shared_mem[0] / C;
    __syncthreads();  // all have read the mean

    shared_mem[tx] = centred * centred;
    for (int threads = blockDim.x; threads > 1; threads = (threads + 1) / 2) {
        __syncthreads();
        const int stride = (threads + 1) / 2;
        if (tx < stride && tx + stride < threads) shared_mem[tx] += shared_mem[tx + stride];
    }
    __syncthreads();
    const float rstd = rsqrtf(shared_mem[0] / C + eps);
    out[at] = from_float<Real>(centred * rstd * to_float(weight[tx]) + to_float(bias[tx]));
}
