/*---
idea   = "Nothing is stored: the backward kernel reads x again and computes the three sigmoids a second time."
expect = "Five transfers instead of eight (x in, y out; x, dy in, dx out), so 5/8 of the time if memory hides six exponentials per element. No buffers, and no activation is rounded: f16 and bf16 keep their bounds."
found  = "Not 5/8 of the time: 671 -> 623 us (1.08x) at n64m in f32 on an H200, 51 % of the copy rate, 1.52x eager torch's speed and 0.51x that of torch.compile. Inferred, not measured: memory does not hide exact exponentials and divisions with one element per thread; rung 4 changes both and takes half."
provenance = "The lecture: throwing away activations costs 5/8 of the memory accesses."
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [256, 128, 512, 1024]
[[launch]]
kernel = "forward"
grid   = "ceil_div(N, BLOCK)"
block  = "BLOCK"
[[launch]]
kernel = "backward"
grid   = "ceil_div(N, BLOCK)"
block  = "BLOCK"
---*/
#include "rung.cuh"

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float slope(float s) { return s * (1.0f - s); }  // of a sigmoid whose value is s

extern "C" __global__ void forward(const Real* x, Real* y, int N)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < N) y[i] = from_float<Real>(sigmoid(sigmoid(sigmoid(to_float(x[i])))));
}

extern "C" __global__ void backward(const Real* x, const Real* dy, Real* dx, int N)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;
    const float a1 = sigmoid(to_float(x[i])), a2 = sigmoid(a1), a3 = sigmoid(a2);
    dx[i] = from_float<Real>(to_float(dy[i]) * slope(a3) * slope(a2) * slope(a1));
}
