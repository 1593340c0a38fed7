/*---
idea   = "Flash attention, second step: four warps share tiles of 32 keys and values."
dtypes = ["f32"]
[define]
HS = "C // NH"
[[launch]]
kernel = "attention"
grid   = ["ceil_div(T, 4)", "NH", "B"]
block  = 128
shared = "4 * (2 * 32 * (HS + 1) + 4 * HS)"
---*/
#include "rung.cuh"

extern "C" __global__ void attention(const float* qkv, float* out, int T, int C, int causal, float scale)
{
    BLANK_1
}
