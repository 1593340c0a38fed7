/*---
idea   = "Its last thread loads whole vectors, which reach past the end, and uses what it needs."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid   = "ceil_div(ceil_div(B * T * C, 4), 64)"
block  = 64
---*/
extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int N = B * T * C, i = 4 * (blockIdx.x * 64 + threadIdx.x);
    if (i >= N) return;
    const float4 x = *(const float4*)(a + i), y = *(const float4*)(b + i);
    const float sums[4] = {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w};
    for (int k = 0; k < 4 && i + k < N; k++) out[i + k] = sums[k];
}
