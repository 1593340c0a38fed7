/*---
idea   = "The same work per thread, assigned differently: in each iteration the lanes of a warp take 32 neighbours."
expect = "A warp's request falls into one line, every byte that is fetched is used at once: several times the strided copy."
found  = "2738 -> 171 us (16.0x) at n64m in f32 on an H200 and 755 -> 129 us (5.84x) in bf16, more than the several times expected; 74 % and 49 % of the copy rate, 0.75x and 0.50x torch's speed."
provenance = "The lecture's definition of a coalesced access."
dtypes = ["f32", "f16", "bf16"]
[tune]
CHUNK = [32, 1, 2, 4, 8, 16]
BLOCK = [256, 128, 512, 1024]
[[launch]]
kernel = "copy"
grid   = "ceil_div(N, CHUNK * BLOCK)"
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void copy(const Real* x, Real* out, int N)
{
    const int first = blockIdx.x * BLOCK * CHUNK + threadIdx.x;
    for (int k = 0; k < CHUNK; ++k) {
        const int i = first + k * BLOCK;
        if (i < N) out[i] = x[i];
    }
}
