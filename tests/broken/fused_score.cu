/*---
idea = "A softmax whose sum takes rounded scores, and whose results take scores that a GPU's compiler fuses into a subtraction."
dtypes = ["f32"]
[[launch]]
kernel = "softmax"
grid = "B * NH * T"
block = 32
---*/
#include "rung.cuh"

extern "C" __global__ void softmax(const Real* x, Real* out, int NH, int T, int S, int causal, float scale)
{
    const int row = blockIdx.x, visible = causal ? S - T + row % T + 1 : S;
    const Real* in = x + int64_t(row) * S;
    float largest = -FLT_MAX, sum = 0.0f;
    for (int s = 0; s < visible; s++) {
        const float score = scale * to_float(in[s]), before = largest;
        largest = fmaxf(largest, score);
        sum = sum * expf(before - largest) + expf(score - largest);
    }
    for (int s = threadIdx.x; s < S; s += 32) {
        out[int64_t(row) * S + s] = from_float<Real>(s < visible ? expf(scale * to_float(in[s]) - largest) / sum : 0.0f);
    }
}
