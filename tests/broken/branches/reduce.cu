/*---
idea = "A warp for a short row, a block for a longer row, float4 for the longest."
dtypes = ["f32"]
[[launch]]
kernel = "reduce"
grid = "B"
block = 256
---*/
extern "C" __global__ void reduce(const float* x, float* out, int N)
{
    __shared__ float part[256];
    x += size_t(blockIdx.x) * N;
    const int t = threadIdx.x;
    float s = 0.0f;
    if (N <= 32) {
        if (t < 32) {
            s = t < N ? x[t] : 0.0f;
            for (int o = 16; o; o /= 2) s += __shfl_down_sync(~0u, s, o);
            if (t == 0) out[blockIdx.x] = s;
        }
        return;
    }
    if (N / 256 >= 40 && N % 4 == 0) {
        for (int i = t; i < N / 4; i += 256) {
            float4 v = ((const float4*)x)[i];
            s += v.x + v.y + (v.z + v.w);
        }
    } else if (N > 50000) {
        float u = 0.0f;
        for (int i = t; i < N; i += 512) s += x[i], u += i + 256 < N ? x[i + 256] : 0.0f;
        s += u;
    } else {
        for (int i = t; i < N; i += 256) s += x[i];
    }
    part[t] = s;
    for (int o = 128; o; o /= 2) {
        __syncthreads();
        if (t < o) part[t] += part[t + o];
    }
    if (t == 0) out[blockIdx.x] = part[0];
}
