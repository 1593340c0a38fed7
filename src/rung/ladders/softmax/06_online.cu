/*---
idea   = "Maximum and sum in a single pass: when a larger score occurs, the running sum is scaled by exp(m - m_new)."
expect = "Two reads of the row instead of three: a third off for rows that do not fit into the caches. The cost is a chain of dependent steps with an exponential for each score."
provenance = "Milakov and Gimelshein, Online normalizer calculation for softmax (2018), as shown in the GPU lecture, part 3."
found  = "Not a third: 186 -> 195 us (0.95x) at b8t1024 in f32 on an H200, slower; 1.09x in bf16 and 1.14x over the vocabulary. A row of 1024 presumably stays in a cache for its second read, so that little is saved for the longer chain."
dtypes = ["f32", "f16", "bf16"]
needs  = "BLOCK % 32 == 0"
[tune]
BLOCK = [128, 32, 64, 256]
[[launch]]
kernel = "softmax"
grid   = "ceil_div(B * NH * T, BLOCK // 32)"
block  = "BLOCK"
---*/
#include "rung.cuh"

extern "C" __global__ void softmax(const Real* __restrict__ x, Real* __restrict__ out, int B, int NH, int T, int S, int causal,
                                   float scale)
{
    const int row = blockIdx.x * (BLOCK / WARP_SIZE) + warp_id();
    if (row >= B * NH * T) return;  // the whole warp
    const int visible = causal ? S - T + row % T + 1 : S;
    const Real* __restrict__ in = x + int64_t(row) * S;
    Real* __restrict__ probability = out + int64_t(row) * S;

    // Rounded alike in both passes: a fused scale * x - m would take the exponential of another score than the sum has.
    const auto score_of = [&](int s) { return __fmul_rn(scale, to_float(in[s])); };

    // A finite start value: a lane without columns must not compute inf - inf.
    float m = -FLT_MAX, l = 0.0f;
    for (int s = lane_id(); s < visible; s += WARP_SIZE) {
        const float score = score_of(s);
        const float smaller = expf(fminf(m, score) - fmaxf(m, score));
        l = score > m ? l * smaller + 1.0f : l + smaller;
        m = fmaxf(m, score);
    }
    const float m_row = warp_max(m);
    const float l_row = warp_sum(l * expf(m - m_row));

    for (int s = lane_id(); s < S; s += WARP_SIZE)
        probability[s] = from_float<Real>(s < visible ? expf(score_of(s) - m_row) / l_row : 0.0f);
}
