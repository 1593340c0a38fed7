/*---
idea   = "Sum the rows, one block of 128 threads for each: you write the whole kernel."
dtypes = ["f32"]
[[launch]]
kernel = "row_sum"
grid   = "B"
block  = 128
---*/
#include "rung.cuh"

extern "C" __global__ void row_sum(const float* x, float* out, int N)
{
    BLANK_1
}
