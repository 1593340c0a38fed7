// One thread per query row, causal attention with online softmax. q, k, v: (B, nh, T, hs)
#include <math.h>
#include <float.h>
#define MAX_HS 128
__global__ void attn_fwd(const float* q, const float* k, const float* v, float* out, int T, int hs, float scale, int causal) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  int bh = blockIdx.y;
  if (t >= T) return;
  const float* qr = q + ((size_t)bh * T + t) * hs;
  float acc[MAX_HS];
  for (int i = 0; i < hs; i++) acc[i] = 0.f;
  float m = -FLT_MAX, l = 0.f;
  int end = causal ? t + 1 : T;
  for (int s = 0; s < end; s++) {
    const float* kr = k + ((size_t)bh * T + s) * hs;
    float dot = 0.f;
    for (int i = 0; i < hs; i++) dot += qr[i] * kr[i];
    dot *= scale;
    float mn = fmaxf(m, dot);
    float c = expf(m - mn), p = expf(dot - mn);
    l = l * c + p;
    const float* vr = v + ((size_t)bh * T + s) * hs;
    for (int i = 0; i < hs; i++) acc[i] = acc[i] * c + p * vr[i];
    m = mn;
  }
  for (int i = 0; i < hs; i++) out[((size_t)bh * T + t) * hs + i] = acc[i] / l;
}
