/*---
idea = "The maximum and the sum in one pass: a column of -inf weighs nothing, and must not become the first maximum."
dtypes = ["f32"]
[[launch]]
kernel = "softmax"
grid = "B * NH * T"
block = 1
---*/
extern "C" __global__ void softmax(const float* x, float* out, int T, int S, int causal, float scale) {
    const long long row = blockIdx.x;
    const int seen = causal ? S - T + row % T + 1 : S;
    x += row * S, out += row * S;
    float m = -INFINITY, l = 0.0f;
    for (int s = 0; s < seen; s++) {
        const float z = __fmul_rn(x[s], scale);
        if (z == -INFINITY) continue;
        const float now = fmaxf(m, z);
        l = l * expf(m - now) + expf(z - now), m = now;
    }
    for (int s = 0; s < S; s++) out[s] = s < seen ? expf(__fmul_rn(x[s], scale) - m) / l : 0.0f;
}
