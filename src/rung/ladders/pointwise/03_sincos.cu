/*---
idea   = "Sine and cosine of one angle share their range reduction: sincosf does it once."
expect = "Two trigonometric functions per element are about as many instructions as the bandwidth leaves time for; a third fewer should help, if fusion has made arithmetic the limit."
found  = "232 -> 216 us (1.07x) at n64m in f32 on an H200, 58 % of the copy rate, 0.66x torch.compile's speed: a small gain, not a third. Arithmetic was not the limit: rung 4 has the same sincosf and reaches 97 % of the copy rate."
provenance = "Own."
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [256, 128, 512, 1024]
[[launch]]
kernel = "sin2_plus_cos2"
grid   = "ceil_div(N, BLOCK)"
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void sin2_plus_cos2(const Real* x, Real* out, int N)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;
    float sine, cosine;
    sincosf(to_float(x[i]), &sine, &cosine);
    out[i] = from_float<Real>(sine * sine + cosine * cosine);
}
