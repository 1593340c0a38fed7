#include "common.h"
#define GELU_SCALING_FACTOR sqrtf(2.0f / M_PI)

struct alignas(16) Packed { float v[4]; __device__ float& operator[](int i) { return v[i]; } };
__device__ inline Packed load128(const float* p) { return *reinterpret_cast<const Packed*>(p); }
__device__ inline void store128(float* p, Packed x) { *reinterpret_cast<Packed*>(p) = x; }

__host__ __device__ inline float gelu(float x) { return 0.5f * x * (1.0f + tanhf(GELU_SCALING_FACTOR * (x + 0.044715f * x * x * x))); }

__global__ void gelu_forward1(float* out, const float* inp, int N)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = gelu(inp[i]);
}
__global__ void gelu_forward2(float* out, const float* inp, int N)
{
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= N) return;
    Packed x = load128(inp + i), y;
    for (int k = 0; k < 4; k++) y[k] = gelu(x[k]);
    store128(out + i, y);
}
__global__ void gelu_backward(float* dinp, const float* inp, const float* dout, const int N)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        float x = inp[i], cube = 0.044715f * x * x * x, arg = GELU_SCALING_FACTOR * (x + cube), t = tanhf(arg), c = coshf(arg);
        dinp[i] = (0.5f * (1.0f + t) + x * 0.5f * (1.0f / (c * c)) * GELU_SCALING_FACTOR * (1.0f + 3.0f * 0.044715f * x * x)) * dout[i];
    }
}
int main()
{
    const int N = 1024;
    float *x = make_random_float(N), *dy = make_random_float(N), y[N], dx[N];
    for (int i = 0; i < N; i++) {
        y[i] = gelu(x[i]);
        double h = 1e-3;
        auto f = [](double v) { return 0.5 * v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))); };
        dx[i] = (f(x[i] + h) - f(x[i] - h)) / (2 * h) * dy[i];
    }
    float *d_x = to_device(x, N), *d_dy = to_device(dy, N), *d_y = to_device(x, N), *d_dx = to_device(x, N);
    gelu_forward1<<<ceil_div(N, 128), 128>>>(d_y, d_x, N);
    validate_result(d_y, y, "out", N);
    cudaMemset(d_y, 0, N * 4);
    gelu_forward2<<<ceil_div(N, 4 * 128), 128>>>(d_y, d_x, N);
    validate_result(d_y, y, "out", N);
    gelu_backward<<<ceil_div(N, 96), 96>>>(d_dx, d_x, d_dy, N);
    validate_result(d_dx, dx, "dinp", N, 1e-3f);
    printf("OK\n");
}
