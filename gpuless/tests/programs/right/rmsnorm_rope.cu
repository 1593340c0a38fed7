#include <cmath>
#include <cstdio>
#include <vector>
#define WARP_SIZE 32
template <const int kWarpSize = WARP_SIZE> __device__ __forceinline__ float warp_reduce_sum_f32(float val)
{
#pragma unroll
    for (int mask = kWarpSize >> 1; mask >= 1; mask >>= 1) val += __shfl_xor_sync(0xffffffff, val, mask);
    return val;
}
template <const int NUM_THREADS = 128> __device__ float block_reduce_sum_f32(float val)
{
    constexpr int NUM_WARPS = (NUM_THREADS + WARP_SIZE - 1) / WARP_SIZE;
    int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    static __shared__ float shared[NUM_WARPS];
    val = warp_reduce_sum_f32<WARP_SIZE>(val);
    if (lane == 0) shared[warp] = val;
    __syncthreads();
    val = (lane < NUM_WARPS) ? shared[lane] : 0.0f;
    return warp_reduce_sum_f32<NUM_WARPS>(val);
}
template <const int NUM_THREADS = 64> __global__ void rms_norm_f32x4_kernel(float* x, float* y, float g, int N, int K)
{
    int idx = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    __shared__ float s_variance;
    float4 reg_x = reinterpret_cast<float4*>(&x[idx])[0];
    float variance = reg_x.x * reg_x.x + reg_x.y * reg_x.y + reg_x.z * reg_x.z + reg_x.w * reg_x.w;
    variance = block_reduce_sum_f32<NUM_THREADS>(variance);
    if (threadIdx.x == 0) s_variance = rsqrtf(variance / (float)K + 1e-5f);
    __syncthreads();
    float4 reg_y = make_float4(reg_x.x * s_variance * g, reg_x.y * s_variance * g, reg_x.z * s_variance * g, reg_x.w * s_variance * g);
    if (idx < N * K) reinterpret_cast<float4*>(&y[idx])[0] = reg_y;
}
__global__ void rope_f32_kernel(float* x, float* out, int seq_len, int N)
{
    int idx = blockIdx.x * blockDim.x + threadIdx.x, pos = idx / N, i = idx % N;
    float x1 = x[idx * 2], x2 = x[idx * 2 + 1], freq = 1.0f / powf(10000.0f, 2 * i / (N * 2.0f)), s = sinf(pos * freq), c = cosf(pos * freq);
    if (pos < seq_len) out[idx * 2] = x1 * c - x2 * s, out[idx * 2 + 1] = x1 * s + x2 * c;
}
int main()
{
    const int N = 4, K = 256;
    std::vector<float> x(N * K), y(N * K);
    for (int i = 0; i < N * K; i++) x[i] = sinf(i);
    float *dx, *dy;
    cudaMalloc(&dx, N * K * 4), cudaMalloc(&dy, N * K * 4), cudaMemcpy(dx, x.data(), N * K * 4, cudaMemcpyHostToDevice);
    rms_norm_f32x4_kernel<64><<<N, 64>>>(dx, dy, 2.0f, N, K);
    cudaMemcpy(y.data(), dy, N * K * 4, cudaMemcpyDeviceToHost);
    for (int n = 0; n < N; n++) {
        double sum = 0;
        for (int k = 0; k < K; k++) sum += x[n * K + k] * x[n * K + k];
        for (int k = 0; k < K; k++) if (std::abs(y[n * K + k] - 2 * x[n * K + k] / std::sqrt(sum / K + 1e-5)) > 1e-4) return printf("norm %d\n", k), 1;
    }
    rope_f32_kernel<<<N * K / 2 / 64, 64>>>(dx, dy, N, K / 2);
    cudaMemcpy(y.data(), dy, N * K * 4, cudaMemcpyDeviceToHost);
    for (int i = 0; i < N * K; i += 2) if (std::abs(std::hypot(x[i], x[i + 1]) - std::hypot(y[i], y[i + 1])) > 1e-4) return printf("rope %d\n", i), 1;
    puts("OK");
}
