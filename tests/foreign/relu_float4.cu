#include <cuda_runtime.h>
#include <stdio.h>
#define BLOCK 256
#define FLOAT4(v) (reinterpret_cast<float4*>(&(v))[0])

__global__ void relu_f32x4_kernel(float* x, float* y, int N) {
  int idx = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (idx + 3 < N) {
    float4 r = FLOAT4(x[idx]), o;
    o.x = fmaxf(0.0f, r.x); o.y = fmaxf(0.0f, r.y); o.z = fmaxf(0.0f, r.z); o.w = fmaxf(0.0f, r.w);
    FLOAT4(y[idx]) = o;
  } else {
    for (int i = idx; i < N; i++) y[i] = fmaxf(0.0f, x[i]);
  }
}

int main() {
  int N = 1 << 20;
  float *x, *y;
  cudaMalloc(&x, N * sizeof(float)); cudaMalloc(&y, N * sizeof(float));
  relu_f32x4_kernel<<<(N / 4 + BLOCK - 1) / BLOCK, BLOCK>>>(x, y, N);
  cudaDeviceSynchronize();
}
