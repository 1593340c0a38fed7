/*---
idea   = "One kernel per operation, as in eager PyTorch: sine, square, cosine, square, add, each through global memory."
expect = "Eleven transfers of N elements where two would do (five kernels read six arrays and write five): 5.5 times the time of one kernel for large N, five launches for small."
found  = "1057 us at n64m in f32 on an H200, 4.56x the time of one kernel (rung 2), less than 5.5x, as that one does not reach the copy rate; 8.1x that of rung 4, which does. 0.66x the speed of eager torch, 0.14x that of torch.compile."
provenance = "The lecture's graph of sin(x)**2 + cos(x)**2 and its five CUDA kernels. Only f32: an intermediate rounded to 16 bits four times over leaves the error bound."
dtypes = ["f32"]
[tune]
BLOCK = [256, 128, 512, 1024]
[buffers.sines]
shape = ["N"]
dtype = "real"
[buffers.cosines]
shape = ["N"]
dtype = "real"
[buffers.sines_squared]
shape = ["N"]
dtype = "real"
[buffers.cosines_squared]
shape = ["N"]
dtype = "real"
[[launch]]
kernel = "sine"
grid   = "ceil_div(N, BLOCK)"
block  = "BLOCK"
[[launch]]
kernel = "square"
grid   = "ceil_div(N, BLOCK)"
block  = "BLOCK"
bind   = { inp = "sines", result = "sines_squared" }
[[launch]]
kernel = "cosine"
grid   = "ceil_div(N, BLOCK)"
block  = "BLOCK"
[[launch]]
kernel = "square"
grid   = "ceil_div(N, BLOCK)"
block  = "BLOCK"
bind   = { inp = "cosines", result = "cosines_squared" }
[[launch]]
kernel = "add"
grid   = "ceil_div(N, BLOCK)"
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void sine(const Real* x, Real* sines, int N)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < N) sines[i] = sinf(x[i]);
}

extern "C" __global__ void cosine(const Real* x, Real* cosines, int N)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < N) cosines[i] = cosf(x[i]);
}

extern "C" __global__ void square(const Real* inp, Real* result, int N)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < N) result[i] = inp[i] * inp[i];
}

extern "C" __global__ void add(const Real* sines_squared, const Real* cosines_squared, Real* out, int N)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < N) out[i] = sines_squared[i] + cosines_squared[i];
}
