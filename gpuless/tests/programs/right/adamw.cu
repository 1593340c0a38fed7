#include "common.h"
#include <vector>
__device__ inline float lerp(float start, float end, float weight) { return fma(weight, end, fma(-weight, start, start)); }
__global__ void adamw_kernel(float* params, const float* grads, float* m, float* v, long n, float lr, float b1, float b2, float c1, float c2, float eps, float decay)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float grad = grads[i];
    m[i] = lerp(grad, m[i], b1);
    v[i] = lerp(grad * grad, v[i], b2);
    params[i] -= lr * ((m[i] / c1) / (sqrtf(v[i] / c2) + eps) + decay * params[i]);
}
int main()
{
    const long n = 777;
    float *p = make_random_float(n), *g = make_random_float(n);
    std::vector<float> m(n), v(n), e(p, p + n);
    float *d_p = to_device(p, n), *d_g = to_device(g, n), *d_m = to_device(m.data(), n), *d_v = to_device(v.data(), n);
    for (int t = 1; t <= 3; t++) {
        float c1 = 1 - powf(0.9f, t), c2 = 1 - powf(0.999f, t);
        for (long i = 0; i < n; i++) {
            m[i] = 0.9f * m[i] + 0.1f * g[i], v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
            e[i] -= 1e-3f * (m[i] / c1 / (sqrtf(v[i] / c2) + 1e-8f) + 0.01f * e[i]);
        }
        adamw_kernel<<<ceil_div(n, 256L), 256>>>(d_p, d_g, d_m, d_v, n, 1e-3f, 0.9f, 0.999f, c1, c2, 1e-8f, 0.01f);
        cudaCheck(cudaGetLastError());
    }
    validate_result(d_p, e.data(), "params", n, 1e-4f);
    printf("OK\n");
}
