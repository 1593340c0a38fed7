/*---
idea = "Short rows in registers of one warp, longer rows in shared memory, the longest in two passes over memory."
dtypes = ["f32"]
needs = "not causal"
[[launch]]
kernel = "softmax"
grid = "B * NH * T"
block = 128
---*/
__device__ float reduced(float mine, bool largest)
{
    __shared__ float part[4];
    for (int o = 16; o; o /= 2) {
        float other = __shfl_xor_sync(~0u, mine, o);
        mine = largest ? fmaxf(mine, other) : mine + other;
    }
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = mine;
    __syncthreads();
    float a = part[0], b = part[1], c = part[2], d = part[3];
    __syncthreads();
    return largest ? fmaxf(fmaxf(a, b), fmaxf(c, d)) : a + b + (c + d);
}

extern "C" __global__ void softmax(const float* x, float* out, int S, float scale)
{
    __shared__ float row[4096];
    x += size_t(blockIdx.x) * S;
    out += size_t(blockIdx.x) * S;
    const int t = threadIdx.x;
    if (S <= 64) {
        if (t >= 32) return;
        float a = t < S ? x[t] * scale : -INFINITY, b = t + 32 < S ? x[t + 32] * scale : -INFINITY;
        float m = fmaxf(a, b);
        for (int o = 16; o; o /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
        a = expf(a - m), b = expf(b - m);
        float l = a + b;
        for (int o = 16; o; o /= 2) l += __shfl_xor_sync(~0u, l, o);
        if (t < S) out[t] = a / l;
        if (t + 32 < S) out[t + 32] = b / l;
        return;
    }
    float m = -INFINITY, l = 0.0f;
    if (S * sizeof(float) <= sizeof(row)) {
        for (int c = t; c < S; c += 128) m = fmaxf(m, row[c] = x[c] * scale);
        m = reduced(m, true);
        for (int c = t; c < S; c += 128) l += row[c] = expf(row[c] - m);
        l = reduced(l, false);
        for (int c = t; c < S; c += 128) out[c] = row[c] / l;
    } else {
        for (int c = t; c < S; c += 128) m = fmaxf(m, x[c] * scale);
        m = reduced(m, true);
        for (int first = 0; first < S; first += 4096) {
            const int last = min(S, first + 4096);
            for (int c = first + t; c < last; c += 128) l += row[c - first] = expf(x[c] * scale - m);
            __syncthreads();
            for (int c = first + 127 - t; c < last; c += 128) out[c] = row[c - first];
            __syncthreads();
        }
        l = reduced(l, false);
        for (int c = t; c < S; c += 128) out[c] /= l;
    }
}
