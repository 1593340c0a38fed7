// Helpers as those of CUDA's samples offer their functions if these guards of CUDA's own headers are defined.
#include <cstdio>
#include <cuda_runtime.h>

#if defined(__CUDA_RUNTIME_H__) && defined(__DRIVER_TYPES_H__)
static bool check(cudaError_t error) { return error == cudaSuccess; }
#endif

__global__ void fill(int* x) { x[threadIdx.x] = threadIdx.x; }

int main() {
    int *x, host[32];
    bool right = check(cudaMalloc(&x, sizeof host));
    fill<<<1, 32>>>(x);
    right &= check(cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost)) && host[31] == 31 && check(cudaFree(x));
    puts(right ? "OK" : "wrong");
}
