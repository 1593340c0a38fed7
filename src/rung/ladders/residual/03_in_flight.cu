/*---
idea   = "Each thread issues loads of several vectors of both inputs before it adds the first, and its stores bypass the caches."
expect = "Twice UNROLL loads of 16 bytes in flight per thread keep the memory busy while blocks start and end; a few percent more on large tensors, nothing on those that fit into L2."
provenance = "Our own; Little's law: bytes in flight = bandwidth x latency, some 25 KB an SM on an H200."
found  = "Slower, not a few percent faster: 19.4 -> 19.9 us (0.97x) at b8t1024 in f32 on an H200, 10.7 -> 11.1 us (0.96x) in bf16, 0.96x torch's speed. Presumably enough loads were in flight already; only at b4t64, where nothing was expected, it is 1.02x."
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK  = [256, 128, 512]
UNROLL = [2, 1, 4]
STREAM = [1, 0]
[[launch]]
kernel = "residual"
grid   = "ceil_div(ceil_div(B * T * C, 16 // sizeof_real), BLOCK * UNROLL)"
block  = "BLOCK"
[model]
serves = { tensorcore = 1, prompt = 1 }
---*/
#include "rung.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
    residual(const Real* __restrict__ a, const Real* __restrict__ b, Real* __restrict__ out, int B, int T, int C)
{
    const int64_t N = int64_t(B) * T * C;
    const int64_t tile = int64_t(blockIdx.x) * BLOCK * UNROLL * VEC;
    if (tile + BLOCK * UNROLL * VEC > N) {  // the last block
        for (int64_t i = tile + threadIdx.x; i < N; i += BLOCK) out[i] = from_float<Real>(to_float(a[i]) + to_float(b[i]));
        return;
    }
    const int64_t first = tile + threadIdx.x * VEC;
    Vec<Real, VEC> x[UNROLL], y[UNROLL];

#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        x[u] = load_stream(a + first + u * BLOCK * VEC);
        y[u] = load_stream(b + first + u * BLOCK * VEC);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
        for (int j = 0; j < VEC; ++j) x[u][j] = from_float<Real>(to_float(x[u][j]) + to_float(y[u][j]));
        if (STREAM)
            store_stream(out + first + u * BLOCK * VEC, x[u]);
        else
            store_vec(out + first + u * BLOCK * VEC, x[u]);
    }
}
