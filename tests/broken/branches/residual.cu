/*---
idea = "Four numbers per thread where the count allows it, one otherwise; large tensors by a loop over the grid."
dtypes = ["f32"]
[bind]
N = "B * T * C"
[[launch]]
kernel = "add"
grid = "min(ceil_div(B * T * C, 256), 1024)"
block = 256
---*/
extern "C" __global__ void add(const float* a, const float* b, float* out, int N)
{
    const int first = blockIdx.x * 256 + threadIdx.x, step = gridDim.x * 256;
    if (N % 4 == 0 && N >= 40000) {
        const float4* a4 = (const float4*)a;
        const float4* b4 = (const float4*)b;
        for (int i = first; i < N / 4; i += step) {
            float4 x = a4[i], y = b4[i];
            ((float4*)out)[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
        }
    } else if (N < 3000000) {
        for (int i = first; i < N; i += step) out[i] = a[i] + b[i];
    } else {
        for (int i = first; i < N; i += 2 * step) {
            out[i] = a[i] + b[i];
            if (i + step < N) out[i + step] = a[i + step] + b[i + step];
        }
    }
}
