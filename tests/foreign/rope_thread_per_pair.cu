#include <math.h>
__global__ void rope_kernel(const float* q, const float* cos_table, const float* sin_table, float* out, int B, int T, int n_heads, int head_dim)
{
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    int half = head_dim / 2;
    int total = B * T * n_heads * half;
    if (idx >= total) return;
    int i = idx % half;
    int h = (idx / half) % n_heads;
    int t = (idx / half / n_heads) % T;
    int b = idx / half / n_heads / T;
    size_t base = (((size_t)b * T + t) * n_heads + h) * head_dim;
    float c = cos_table[t * half + i], s = sin_table[t * half + i];
    float x0 = q[base + i], x1 = q[base + i + half];
    out[base + i] = x0 * c - x1 * s;
    out[base + i + half] = x1 * c + x0 * s;
}
void rope(const float* q, const float* c, const float* s, float* out, int B, int T, int NH, int HS) {
    int total = B * T * NH * HS / 2;
    rope_kernel<<<(total + 255) / 256, 256>>>(q, c, s, out, B, T, NH, HS);
}
