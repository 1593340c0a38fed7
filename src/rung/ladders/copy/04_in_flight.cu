/*---
idea   = "A thread issues loads of DEPTH vectors before it stores the first, and neither loads nor stores stay in the caches."
expect = "Latency times bandwidth must be in flight: with DEPTH requests per thread fewer warps suffice. The last few percent, or nothing if occupancy alone was enough."
found  = "Slower: 127 -> 139 us (0.92x) at n64m in f32 on an H200 and 64.6 -> 70.4 us (0.92x) in bf16, 0.92x torch's speed in either. Rung 3 was at 99 % and 97 % of the copy rate, so occupancy alone was enough; the costs of the depth and of the streaming hints were not measured separately."
provenance = "Ours; the lecture's picture of a factory, with several lorries sent out before the first returns."
dtypes = ["f32", "f16", "bf16"]
[tune]
DEPTH = [4, 1, 2, 8]
BLOCK = [256, 128, 512]
[[launch]]
kernel = "copy"
grid   = "ceil_div(N, BLOCK * DEPTH * (16 // sizeof_real))"
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void copy(const Real* x, Real* out, int N)
{
    const int tile = blockIdx.x * BLOCK * DEPTH * VEC;
    const int first = tile + threadIdx.x * VEC;
    if (tile + BLOCK * DEPTH * VEC <= N) {
        Vec<Real, VEC> held[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) held[d] = load_stream(x + first + d * BLOCK * VEC);
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) store_stream(out + first + d * BLOCK * VEC, held[d]);
    } else {
        for (int i = tile + threadIdx.x; i < N; i += BLOCK) out[i] = x[i];
    }
}
