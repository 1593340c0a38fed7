/*---
idea   = "Rung 2, which stores both inner activations, with the 16-byte accesses and the cheaper sigmoid of rung 4."
expect = "Bound by memory like rung 4, so that eight transfers against its five show in the time: 8/5 of it."
found  = "511 us at n64m in f32 on an H200; rung 4 takes 0.617 of it, where five transfers against eight predict 0.625."
provenance = "The lecture's 8 reads and writes for three stacked sigmoids, at the bandwidth of rung 4."
from   = "recompute/2"
side_experiment = "The stored side of the lecture's comparison, as fast as the memory allows."
dtypes = ["f32"]
[tune]
BLOCK = [256, 128, 512]
[buffers.s1]
shape = ["N"]
dtype = "real"
[buffers.s2]
shape = ["N"]
dtype = "real"
[[launch]]
kernel = "forward"
grid   = "ceil_div(N, BLOCK * 4)"
block  = "BLOCK"
[[launch]]
kernel = "backward"
grid   = "ceil_div(N, BLOCK * 4)"
block  = "BLOCK"
---*/
#include "rung.cuh"

// __fdividef(1, d) is 0 for d above 2^126, which is what a sigmoid far to the left should be.
__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ inline float slope(float s) { return s * (1.0f - s); }  // of a sigmoid whose value is s

extern "C" __global__ void forward(const Real* x, Real* s1, Real* s2, Real* y, int N)
{
    const int i = (blockIdx.x * BLOCK + threadIdx.x) * VEC;
    const int count = min(VEC, N - i);
    if (count == VEC) {
        Vec<Real, VEC> a = load_vec<Real>(x + i), b, c;
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            a.v[k] = sigmoid(a.v[k]);
            b.v[k] = sigmoid(a.v[k]);
            c.v[k] = sigmoid(b.v[k]);
        }
        store_vec(s1 + i, a);
        store_vec(s2 + i, b);
        store_vec(y + i, c);
    } else {
        for (int k = i; k < N; ++k) {
            s1[k] = sigmoid(x[k]);
            s2[k] = sigmoid(s1[k]);
            y[k] = sigmoid(s2[k]);
        }
    }
}

extern "C" __global__ void backward(const Real* dy, const Real* s1, const Real* s2, Real* dx, int N)
{
    const int i = (blockIdx.x * BLOCK + threadIdx.x) * VEC;
    if (i + VEC <= N) {
        const Vec<Real, VEC> a = load_vec<Real>(s1 + i), b = load_vec<Real>(s2 + i);
        Vec<Real, VEC> d = load_vec<Real>(dy + i);
#pragma unroll
        for (int k = 0; k < VEC; ++k) d.v[k] *= slope(sigmoid(b.v[k])) * slope(b.v[k]) * slope(a.v[k]);
        store_vec(dx + i, d);
    } else {
        for (int k = i; k < N; ++k) dx[k] = dy[k] * slope(sigmoid(s2[k])) * slope(s2[k]) * slope(s1[k]);
    }
}
