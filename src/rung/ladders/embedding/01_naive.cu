/*---
idea   = "One thread per element, in a 3-D block whose x, y, z are b, t, c."
expect = "Simple and slow: neighbouring threads (x is b) are T * C elements apart, so each load of a warp touches dozens of cache lines for four bytes of each."
provenance = "The encoder kernel of the ECE 408 baseline (milestone 2, baseline profiling: not coalesced, hit rates below 30 %); cubes from 3 to 10 in the sweep of milestone 3, where 5 was best."
found  = "65.9 us at b8t1024 in f32 on an H200, 19 % of the copy rate and 0.52x torch's speed, with cubes of 5; in bf16 79.3 us, longer for half the bytes, 8 %. At b4t64 a cube of 4 is the best here (3.17 us; 5 takes 3.69, 3 takes 7.98); the report's was 5, on an A40."
dtypes = ["f32", "f16", "bf16"]
[tune]
EDGE = [5, 3, 4, 6, 7, 8, 9, 10]
[[launch]]
kernel = "embedding"
grid   = ["ceil_div(B, EDGE)", "ceil_div(T, EDGE)", "ceil_div(C, EDGE)"]
block  = ["EDGE", "EDGE", "EDGE"]
[model]
serves = { naive = 1, any = 2 }
---*/
#include "rung.cuh"

extern "C" __global__ void embedding(const int* tokens, const Real* wte, const Real* wpe, Real* out, int B, int T, int C,
                                     int start)
{
    const int b = blockIdx.x * blockDim.x + threadIdx.x;
    const int t = blockIdx.y * blockDim.y + threadIdx.y;
    const int c = blockIdx.z * blockDim.z + threadIdx.z;
    if (b >= B || t >= T || c >= C) return;

    const int64_t row = int64_t(b) * T + t;
    const float token = to_float(wte[int64_t(tokens[row]) * C + c]);
    const float position = to_float(wpe[int64_t(start + t) * C + c]);
    out[row * C + c] = from_float<Real>(token + position);
}
