// A kernel in one stream reads what a kernel in another writes. In the order of issue the result is right.
#include <cstdio>

__global__ void set(float* x) { x[threadIdx.x] = threadIdx.x; }
__global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }

int main()
{
    float *x, *y, result[64];
    cudaMalloc(&x, sizeof result);
    cudaMalloc(&y, sizeof result);
    cudaStream_t first, second;
    cudaStreamCreate(&first);
    cudaStreamCreate(&second);
    set<<<1, 64, 0, first>>>(x);  // fault: race
    twice<<<1, 64, 0, second>>>(x, y);
    cudaStreamSynchronize(second);
    cudaMemcpy(result, y, sizeof result, cudaMemcpyDeviceToHost);
    printf("%s\n", cudaDeviceSynchronize() == cudaSuccess && result[5] == 10 ? "OK" : "wrong");
    cudaStreamDestroy(first);
    cudaStreamDestroy(second);
    cudaFree(x);
    cudaFree(y);
}
