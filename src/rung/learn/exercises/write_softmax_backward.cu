/*---
idea   = "The gradient of a softmax, one warp for each row: you write the whole kernel."
dtypes = ["f32"]
[[launch]]
kernel = "backward"
grid   = "B"
block  = 32
---*/
#include "rung.cuh"

extern "C" __global__ void backward(const float* x, const float* dy, float* out, int N)
{
    BLANK_1
}
