#include <cstdio>
#include <string>
__device__ const char* const names[] = {"zero", "one"};
__global__ void hello(int val)
{
    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) printf("[%d, %d]:\t\tvalue is %d (%s) %5.2f %c %lu\n", blockIdx.y * gridDim.x + blockIdx.x, threadIdx.x, val, names[val & 1], val * 0.5, 'x', 10ul);
}
int main()
{
    hello<<<dim3(2, 2), dim3(2, 2, 2)>>>(10);
    cudaDeviceSynchronize();
    printf(cudaGetLastError() == cudaSuccess ? "OK\n" : "failed\n");
}
