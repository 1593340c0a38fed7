/*---
idea   = "Flash attention, first step: one warp for each query."
dtypes = ["f32"]
[define]
HS = "C // NH"
[[launch]]
kernel = "attention"
grid   = ["T", "NH", "B"]
block  = 32
---*/
#include "rung.cuh"

extern "C" __global__ void attention(const float* qkv, float* out, int T, int C, int causal, float scale)
{
    BLANK_1
}
