/*---
idea = "One block per query; scores of short texts in shared memory, of long texts in chunks that are rescaled."
dtypes = ["f32"]
needs = ["HS <= 128", "causal"]
[[launch]]
kernel = "attention"
grid = ["T", "NH", "B"]
block = 128
---*/
extern "C" __global__ void attention(const float* q_heads, const float* k_heads, const float* v_heads, float* out, int T, int NH, int HS,
                                     int C, float scale)
{
    __shared__ float p[256], shared[128];
    const int t = blockIdx.x, h = blockIdx.y, b = blockIdx.z, d = threadIdx.x;
    const size_t head = (size_t(b) * NH + h) * T * HS;
    const float* query = q_heads + head + size_t(t) * HS;
    float m = -INFINITY, l = 0.0f, o = 0.0f;
    for (int first = 0; first <= t; first += 256) {
        const int n = min(256, t + 1 - first);
        float most = -INFINITY;
        for (int i = d; i < n; i += 128) {
            float s = 0.0f;
            for (int c = 0; c < HS; c++) s += query[c] * k_heads[head + size_t(first + i) * HS + c];
            most = fmaxf(most, p[i] = s * scale);
        }
        shared[d] = most;
        for (int step = 64; step; step /= 2) {
            __syncthreads();
            if (d < step) shared[d] = fmaxf(shared[d], shared[d + step]);
        }
        __syncthreads();
        const float next = fmaxf(m, shared[0]);
        __syncthreads();
        if (first > 0) {
            const float keep = expf(m - next);
            l *= keep;
            o *= keep;
        }
        m = next;
        for (int i = 0; i < n; i++) {
            const float e = expf(p[i] - m);
            l += e;
            if (d < HS) o += e * v_heads[head + size_t(first + i) * HS + d];
        }
        __syncthreads();
    }
    if (d < HS) out[(size_t(b) * T + t) * C + h * HS + d] = o / l;
}
