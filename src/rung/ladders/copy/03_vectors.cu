/*---
idea   = "A thread moves 16 bytes with one load and one store; the last few elements go one by one."
expect = "A quarter of the instructions in f32, an eighth in f16 and bf16, where 4- or 2-byte loads cannot keep enough bytes in flight: close to the copy bandwidth."
found  = "171 -> 127 us (1.34x) at n64m in f32 on an H200, 99 % of the copy rate, a tie with torch; 129 -> 64.6 us (2.00x) in bf16, 97 % of it, 1.01x torch's speed. As expected, and the best of the ladder."
provenance = "The float4 loads of the flash-attention case study, version 7, where they gained almost nothing; here nothing else is in the way."
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [256, 128, 512, 1024]
[[launch]]
kernel = "copy"
grid   = "ceil_div(N, BLOCK * (16 // sizeof_real))"
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void copy(const Real* x, Real* out, int N)
{
    const int i = (blockIdx.x * BLOCK + threadIdx.x) * VEC;
    if (i + VEC <= N) {
        store_vec(out + i, load_vec<Real>(x + i));
    } else {
        for (int k = i; k < N; ++k) out[k] = x[k];
    }
}
