/*---
idea = "A row of one number has no deviation: its result is the bias, not nothing."
dtypes = ["f32"]
[[launch]]
kernel = "layernorm"
grid = "B * T"
block = 1
---*/
extern "C" __global__ void layernorm(const float* x, const float* weight, const float* bias, float* out, int C, float eps) {
    x += blockIdx.x * C, out += blockIdx.x * C;
    float mean = 0, var = 0;
    for (int c = 0; c < C; c++) mean += x[c];
    mean /= C;
    for (int c = 0; c < C; c++) var += (x[c] - mean) * (x[c] - mean);
    float scale = rsqrtf(var / C + eps);
    for (int c = 0; c < C; c++) out[c] = (x[c] - mean) * scale * weight[c] + bias[c];
}
