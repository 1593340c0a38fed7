/*---
idea   = "Every block adds its sum to the row's result with one atomic; no second pass over partial sums."
expect = "As fast as two stages: one atomic per block is negligible next to CHUNK loads. The order of the additions is not fixed, so the last bits differ from run to run."
found  = "A little faster than two stages: 19.0 -> 18.5 us (1.03x) at b16n1m in f32 on an H200, 85 % of the copy rate, 1.24x torch's speed and the best there; 136 -> 80.8 us (1.68x) at b65536n1024, 0.89x torch's."
provenance = "The course's third report notes an atomicAdd as the way for several blocks to share one result."
dtypes = ["f32", "f16", "bf16"]
needs  = "BLOCK % 32 == 0"
[tune]
CHUNK = [8192, 2048, 4096, 16384, 65536]
BLOCK = [256, 128, 512]
[[launch]]
kernel = "clear"
grid   = "ceil_div(B, BLOCK)"
block  = "BLOCK"
[[launch]]
kernel = "row_sum"
grid   = ["B", "ceil_div(N, CHUNK)"]
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void clear(float* out, int B)
{
    const int b = blockIdx.x * BLOCK + threadIdx.x;
    if (b < B) out[b] = 0.0f;
}

extern "C" __global__ void row_sum(const Real* x, float* out, int N)
{
    const Real* row = x + (size_t)blockIdx.x * N;
    const int first = blockIdx.y * CHUNK, last = min(first + CHUNK, N);
    float sum = 0.0f;
    for (int n = first + threadIdx.x; n < last; n += BLOCK) sum += to_float(row[n]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) atomicAdd(&out[blockIdx.x], sum);
}
