/*---
idea   = "Two stages in one launch: the block that finishes last, found by a counter, adds the partial sums of its row."
expect = "The second launch is saved and the order of the additions is fixed again, so the result repeats bit for bit. A few microseconds for short work, nothing for long."
found  = "Nothing saved: 18.5 -> 20.6 us (0.90x) at b16n1m in f32 on an H200, slower than two stages (19.0 us) too, 1.11x torch's speed; 80.8 -> 176 us (0.46x) at b65536n1024, 0.41x torch's. The launch is not saved either, since each call first clears the counters; inferred, not measured: the rest is each block's wait for its fences and its counter."
provenance = "Ours; a better use of atomics."
from   = "reduce/6"
dtypes = ["f32", "f16", "bf16"]
needs  = "BLOCK % 32 == 0"
[tune]
CHUNK = [8192, 2048, 4096, 16384, 65536]
BLOCK = [256, 128, 512]
[buffers.partial]
shape = ["B", "ceil_div(N, CHUNK)"]
dtype = "f32"
[buffers.finished]
shape = ["B"]
dtype = "i32"
zero  = true
[[launch]]
kernel = "row_sum"
grid   = ["B", "ceil_div(N, CHUNK)"]
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void row_sum(const Real* x, float* partial, int* finished, float* out, int N)
{
    __shared__ bool last_block;
    const Real* row = x + (size_t)blockIdx.x * N;
    const int first = blockIdx.y * CHUNK, last = min(first + CHUNK, N);
    float sum = 0.0f;
    for (int n = first + threadIdx.x; n < last; n += BLOCK) sum += to_float(row[n]);
    sum = block_sum(sum);

    float* sums = partial + (size_t)blockIdx.x * gridDim.y;
    if (threadIdx.x == 0) {
        sums[blockIdx.y] = sum;
        __threadfence();  // the sum is visible to every block that sees the count
        last_block = atomicAdd(&finished[blockIdx.x], 1) == (int)gridDim.y - 1;
        __threadfence();
    }
    __syncthreads();
    if (!last_block) return;

    sum = 0.0f;
    for (int n = threadIdx.x; n < (int)gridDim.y; n += BLOCK) sum += __ldcg(&sums[n]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
