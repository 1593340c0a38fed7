// An asynchronous copy overwrites what a kernel in another stream may still read.
#include <cstdio>

__global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }

int main()
{
    float *pinned, *x, *y;
    cudaMallocHost(&pinned, 256);
    cudaMalloc(&x, 256);
    cudaMalloc(&y, 256);
    cudaMemset(x, 0, 256);
    for (int i = 0; i < 64; i++) pinned[i] = i;
    cudaStream_t first, second;
    cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
    cudaDeviceSynchronize();
    twice<<<1, 64, 0, first>>>(x, y);
    cudaMemcpyAsync(x, pinned, 256, cudaMemcpyHostToDevice, second);  // fault: race
    printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
    cudaFreeHost(pinned);
    cudaFree(x);
    cudaFree(y);
}
