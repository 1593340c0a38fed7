#include <cstdio>
#include <vector>
#include <iostream>
#include <cassert>
#include <cuda_runtime.h>
#define CHECK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e)); exit(1); } } while (0)
__constant__ float scale[2];
__device__ int counter;
template <typename T, int N> __global__ void add(T* y, const T* x, int n)
{
    __shared__ T tile[N];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : T(0);
    __syncthreads();
    if (i < n) y[i] = tile[threadIdx.x] * scale[0] + scale[1];
    if (threadIdx.x == 0) atomicAdd(&counter, 1);
}
template <class F> __global__ void each(F f, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) f(i); }
__global__ void dyn(float* out) { extern __shared__ float s[]; s[threadIdx.x] = threadIdx.x; __syncthreads(); out[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x]; }
int main()
{
    const int n = 1000;
    std::vector<float> h(n), r(n);
    for (int i = 0; i < n; i++) h[i] = i;
    float *x, *y;
    CHECK(cudaMalloc(&x, n * sizeof(float)));
    CHECK(cudaMalloc(&y, n * sizeof(float)));
    float s[2] = {2, 1};
    CHECK(cudaMemcpyToSymbol(scale, s, sizeof s));
    CHECK(cudaMemcpy(x, h.data(), n * 4, cudaMemcpyHostToDevice));
    add<float, 128><<<(n + 127) / 128, 128>>>(y, x, n);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    each<<<dim3(8), 128>>>([=] __device__ (int i) { y[i] += 1; }, n);
    CHECK(cudaMemcpy(r.data(), y, n * 4, cudaMemcpyDeviceToHost));
    int c; CHECK(cudaMemcpyFromSymbol(&c, counter, sizeof c));
    for (int i = 0; i < n; i++) if (r[i] != 2 * i + 2) { printf("bad %d %f\n", i, r[i]); return 1; }
    dyn<<<1, 64, 64 * sizeof(float)>>>(x);
    CHECK(cudaMemcpy(r.data(), x, 64 * 4, cudaMemcpyDeviceToHost));
    printf("OK %d %f\n", c, r[0]);
    cudaFree(x); cudaFree(y);
    return 0;
}
