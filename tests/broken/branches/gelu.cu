/*---
idea = "Rows over the second axis of the grid; more rows than the axis holds are looped over, wide rows in pairs."
dtypes = ["f32"]
[bind]
rows = "B * T"
[[launch]]
kernel = "gelu"
grid = ["ceil_div(C, 128)", "min(B * T, 500)"]
block = 128
---*/
__device__ float gelu_of(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }

extern "C" __global__ void gelu(const float* x, float* out, int rows, int C)
{
    const int c = blockIdx.x * 128 + threadIdx.x;
    if (c >= C) return;
    int row = blockIdx.y;
    out[size_t(row) * C + c] = gelu_of(x[size_t(row) * C + c]);
    if (rows > 500) {
        for (row += 500; row < rows; row += 500) out[size_t(row) * C + c] = gelu_of(x[size_t(row) * C + c]);
    }
}
