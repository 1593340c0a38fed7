/*---
idea   = "Sixteen bytes per load and per store; what is left over is copied one by one."
dtypes = ["f32"]
[[launch]]
kernel = "copy"
grid   = "ceil_div(N, 4 * 128)"
block  = 128
---*/
#include "rung.cuh"

extern "C" __global__ void copy(const float* x, float* out, int N)
{
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;  // of the thread's vector
    const bool aligned = (uintptr_t(x) | uintptr_t(out)) % 16 == 0;
    if (aligned && BLANK_1 <= N) {
        reinterpret_cast<float4*>(out)[i] = BLANK_2;
    } else {
        for (int64_t j = 4 * i; j < min(int64_t(N), 4 * i + 4); j++) out[j] = x[j];
    }
}
