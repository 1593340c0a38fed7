/*---
idea   = "Two 16-bit numbers in one register: a load, an addition and a store for both."
dtypes = ["f16"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(B * T * C, 2 * 128)"
block  = 128
---*/
#include "rung.cuh"

extern "C" __global__ void residual(const __half* a, const __half* b, __half* out, int B, int T, int C)
{
    const int64_t count = int64_t(B) * T * C, i = 2 * (int64_t(blockIdx.x) * 128 + threadIdx.x);
    const bool aligned = (uintptr_t(a) | uintptr_t(b) | uintptr_t(out)) % 4 == 0;
    if (aligned && BLANK_1) {
        const __half2 left = *reinterpret_cast<const __half2*>(a + i), right = BLANK_2;
        *reinterpret_cast<__half2*>(out + i) = BLANK_3;
    } else {
        for (int64_t j = i; j < min(count, i + 2); j++) out[j] = __hadd(a[j], b[j]);
    }
}
