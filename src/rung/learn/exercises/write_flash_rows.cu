/*---
idea   = "Flash attention, third step: each of four warps has two queries for every key that it reads."
dtypes = ["f32"]
[define]
HS = "C // NH"
[[launch]]
kernel = "attention"
grid   = ["ceil_div(T, 8)", "NH", "B"]
block  = 128
shared = "4 * (2 * 32 * (HS + 1) + 8 * HS)"
---*/
#include "rung.cuh"

extern "C" __global__ void attention(const float* qkv, float* out, int T, int C, int causal, float scale)
{
    BLANK_1
}
