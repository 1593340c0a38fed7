/*---
idea   = "The gradient of a softmax, one warp for each row: all of the kernel is yours."
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
