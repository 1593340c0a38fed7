/*---
idea = "A register that nobody sets takes part where it is not a number."
dtypes = ["f32"]
[bind]
N = "B * T * C"
[[launch]]
kernel = "k"
grid = "ceil_div(B * T * C, 128)"
block = 128
---*/
#include "rung.cuh"

extern "C" __global__ void k(const Real* a, const Real* b, Real* out, int N)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    float extra[2];
    if (threadIdx.x == 999) extra[1] = 1.0f;
    if (i < N) out[i] = fmaxf(a[i] + b[i], extra[1]);
}
