/*---
idea   = "Each thread issues loads of several vectors before it evaluates the first, and its stores bypass the caches."
expect = "UNROLL loads of 16 bytes in flight per thread: the last tenth towards copy speed on tensors larger than L2, nothing on small ones."
provenance = "Our own; Little's law: bytes in flight = bandwidth x latency, some 25 KB per SM on an H200."
found  = "No gain: 48.9 -> 53.5 us (0.91x) at b8t1024 in f32 on an H200, slower, and 25.8 -> 27.2 us (0.95x) in bf16. At b4t64 in bf16, where it leaves 96 blocks for 132 multiprocessors, 2.55 -> 3.65 us (0.70x)."
dtypes = ["f32", "f16", "bf16"]
options = ["--use_fast_math"]
[tune]
BLOCK  = [256, 128, 512]
UNROLL = [4, 1, 2, 8]
STREAM = [1, 0]
[[launch]]
kernel = "gelu"
grid   = "ceil_div(ceil_div(B * T * C, 16 // sizeof_real), BLOCK * UNROLL)"
block  = "BLOCK"
[model]
serves = { tensorcore = 1, prompt = 1 }
---*/
#include "rung.cuh"

__device__ __forceinline__ float gelu_sigmoid(float x)
{
    const float TWO_SQRT_2_OVER_PI = 1.5957691216057308f;
    return x / (1.0f + expf(-TWO_SQRT_2_OVER_PI * x * (1.0f + 0.044715f * x * x)));
}

extern "C" __global__ void __launch_bounds__(BLOCK) gelu(const Real* __restrict__ x, Real* __restrict__ out, int B, int T, int C)
{
    const int64_t N = int64_t(B) * T * C;
    const int64_t tile = int64_t(blockIdx.x) * BLOCK * UNROLL * VEC;
    if (tile + BLOCK * UNROLL * VEC > N) {  // the last block
        for (int64_t i = tile + threadIdx.x; i < N; i += BLOCK) out[i] = from_float<Real>(gelu_sigmoid(to_float(x[i])));
        return;
    }
    const int64_t first = tile + threadIdx.x * VEC;
    Vec<Real, VEC> y[UNROLL];

#pragma unroll
    for (int u = 0; u < UNROLL; ++u) y[u] = load_stream(x + first + u * BLOCK * VEC);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
        for (int j = 0; j < VEC; ++j) y[u][j] = from_float<Real>(gelu_sigmoid(to_float(y[u][j])));
        if (STREAM)
            store_stream(out + first + u * BLOCK * VEC, y[u]);
        else
            store_vec(out + first + u * BLOCK * VEC, y[u]);
    }
}
