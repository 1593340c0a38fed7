#include <cstdio>
#include <cstring>
__global__ void nothing() {}
int main()
{
    nothing<<<1, 2000>>>();
    bool good = cudaPeekAtLastError() == cudaErrorInvalidConfiguration && cudaGetLastError() == cudaErrorInvalidConfiguration && cudaGetLastError() == cudaSuccess;
    nothing<<<0, 32>>>();
    good &= cudaGetLastError() == cudaErrorInvalidConfiguration;
    nothing<<<dim3(1, 70000), 32>>>();
    good &= cudaGetLastError() == cudaErrorInvalidConfiguration;
    void* p;
    good &= cudaMalloc(&p, size_t(1) << 50) == cudaErrorMemoryAllocation && cudaGetLastError() == cudaErrorMemoryAllocation;
    good &= cudaSetDevice(3) == cudaErrorInvalidDevice;
    cudaGetLastError();
    nothing<<<1, 1>>>();
    good &= cudaDeviceSynchronize() == cudaSuccess && cudaFree(nullptr) == cudaSuccess;
    good &= !strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress") && !strcmp(cudaGetErrorString(cudaSuccess), "no error");
    puts(good ? "OK" : "wrong");
    return !good;
}
