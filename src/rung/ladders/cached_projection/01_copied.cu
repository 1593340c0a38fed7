/*---
idea   = "One thread per output: for an earlier token it copies the key or value from the cache, otherwise it computes the sum and stores a new key or value in the cache."
expect = "Two of three sums are replaced by copies for all tokens except the new ones. Each sum still reads a row of x and one of weight by itself."
found  = "A step behind 57 tokens takes 228 us and the first pass 270 on an H200: the copies are free, and what is left reads weights without sharing. torch takes 40 and 68 us."
provenance = "ECE 408 GPT-2 report, milestone 3, KV cache (prepare_qkv): 43.9 to 69.0 tokens/s; its first pass was 60 % slower than the plain product, since it fills the cache as well."
from   = "matmul/1"
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [16, 8, 32]
[[launch]]
kernel = "project"
grid   = ["ceil_div(3 * C, BLOCK)", "ceil_div(T, BLOCK)", "B"]
block  = ["BLOCK", "BLOCK"]
---*/
#include "rung.cuh"

extern "C" __global__ void project(const Real* x, const Real* weight, const Real* bias, Real* k_cache, Real* v_cache, Real* out,
                                   int T, int C, int MAXT, int past)
{
    const int oc = blockIdx.x * BLOCK + threadIdx.x, t = blockIdx.y * BLOCK + threadIdx.y, b = blockIdx.z;
    if (t >= T || oc >= 3 * C) return;
    const size_t row = size_t(b) * T + t;
    Real* kept = oc < C ? nullptr : (oc < 2 * C ? k_cache : v_cache) + (size_t(b) * MAXT + t) * C + oc % C;
    if (kept && t < past) {
        out[row * 3 * C + oc] = *kept;
        return;
    }
    float sum = 0.0f;
    for (int c = 0; c < C; c++) sum += to_float(x[row * C + c]) * to_float(weight[size_t(oc) * C + c]);
    const Real value = from_float<Real>(sum + to_float(bias[oc]));
    out[row * 3 * C + oc] = value;
    if (kept) *kept = value;
}
