/*---
idea = "One thread per query: what is hidden is a matter of the key's place, not of its score."
dtypes = ["f32"]
needs = "HS <= 128"
[[launch]]
kernel = "attention"
grid = "ceil_div(B * NH * T, 32)"
block = 32
---*/
extern "C" __global__ void attention(const float* qkv, float* out, int B, int T, int C, int NH, int HS, float scale, int causal) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    if (i >= B * NH * T) return;
    const int t = i % T, h = i / T % NH, b = i / T / NH;
    const float* const of = qkv + (long long)b * T * 3 * C + h * HS;
    float sum[128], m = -INFINITY, l = 0.0f;
    for (int c = 0; c < HS; c++) sum[c] = 0.0f;
    for (int key = 0; key < T; key++) {
        const float* const k = of + (long long)key * 3 * C + C;
        float score = 0.0f;
        for (int c = 0; c < HS; c++) score += of[(long long)t * 3 * C + c] * k[c];
        score *= scale;
        const bool hidden = causal && key > t;
        if (hidden) continue;
        const float now = fmaxf(m, score), before = expf(m - now), p = expf(score - now);
        l = l * before + p, m = now;
        for (int c = 0; c < HS; c++) sum[c] = sum[c] * before + p * k[C + c];
    }
    for (int c = 0; c < HS; c++) out[((long long)b * T + t) * C + h * HS + c] = sum[c] / l;
}
