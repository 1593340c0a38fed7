/*---
idea   = "One thread per row loops over it and adds."
expect = "N dependent additions, lanes N elements apart in memory, and a GPU with as many threads as there are rows: a small part of the bandwidth."
found  = "271 us at b65536n1024 in f32 on an H200, 23 % of the copy rate and 0.27x torch's speed: as expected, though 65536 rows are as many threads. It refuses the long rows of b16n1m."
provenance = "The linear scan of the attention milestone's first softmax, and of both course projects' baselines."
dtypes = ["f32", "f16", "bf16"]
needs  = "N <= 16384"  # one running sum in float loses a digit for every few powers of ten; longer rows leave the bound
[tune]
BLOCK = [128, 32, 64, 256]
[[launch]]
kernel = "row_sum"
grid   = "ceil_div(B, BLOCK)"
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void row_sum(const Real* x, float* out, int B, int N)
{
    const int b = blockIdx.x * BLOCK + threadIdx.x;
    if (b >= B) return;
    const Real* row = x + (size_t)b * N;
    float sum = 0.0f;
    for (int n = 0; n < N; ++n) sum += to_float(row[n]);
    out[b] = sum;
}
