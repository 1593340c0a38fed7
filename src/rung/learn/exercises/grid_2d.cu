/*---
idea   = "A two-dimensional grid adds a bias to each row of a matrix."
dtypes = ["f32"]
[[launch]]
kernel = "add_bias"
grid   = ["ceil_div(OC, 32)", "ceil_div(B * T, 8)"]
block  = [32, 8]
---*/
#include "rung.cuh"

extern "C" __global__ void add_bias(const float* x, const float* bias, float* out, int B, int T, int OC)
{
    const int column = BLANK_1, row = BLANK_2;
    if (row < B * T && column < OC) {
        const int64_t i = BLANK_3;
        out[i] = x[i] + bias[column];
    }
}
