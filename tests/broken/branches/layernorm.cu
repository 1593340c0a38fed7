/*---
idea = "One warp per row; wide rows of whole vectors by float4, many rows by a loop."
dtypes = ["f32"]
[bind]
N = "B * T"
[[launch]]
kernel = "layernorm"
grid = "min(ceil_div(B * T, 4), 600)"
block = 128
---*/
__device__ float sum(float mine)
{
    for (int o = 16; o; o /= 2) mine += __shfl_xor_sync(~0u, mine, o);
    return mine;
}

extern "C" __global__ void layernorm(const float* x, const float* weight, const float* bias, float* out, int N, int C,
                                     float eps)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int n = blockIdx.x * 4 + warp; n < N; n += gridDim.x * 4) {
        const float* row = x + size_t(n) * C;
        float s = 0.0f, q = 0.0f;
        for (int c = lane; c < C; c += 32) s += row[c];
        const float mean = sum(s) / C;
        for (int c = lane; c < C; c += 32) q += (row[c] - mean) * (row[c] - mean);
        const float rstd = rsqrtf(sum(q) / C + eps);
        const int vectors = C / 4;
        if (vectors * 4 == C && vectors > 350) {
            const float4* row4 = (const float4*)row;
            for (int c = lane; c < vectors; c += 32) {
                float4 v = row4[c], w = ((const float4*)weight)[c], b = ((const float4*)bias)[c];
                ((float4*)(out + size_t(n) * C))[c] =
                    make_float4((v.x - mean) * rstd * w.x + b.x, (v.y - mean) * rstd * w.y + b.y,
                                (v.z - mean) * rstd * w.z + b.z, (v.w - mean) * rstd * w.w + b.w);
            }
        } else {
            for (int c = lane; c < C; c += 32) out[size_t(n) * C + c] = (row[c] - mean) * rstd * weight[c] + bias[c];
        }
    }
}
