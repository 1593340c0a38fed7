#include <cstdio>
#include <cstring>
__global__ void nothing() {}
bool good = true;
void expect(const char* what, cudaError_t got, cudaError_t wanted)
{
    if (got == wanted) return;
    printf("%s: %s, not %s\n", what, cudaGetErrorName(got), cudaGetErrorName(wanted));
    good = false;
}
int main()
{
    nothing<<<1, 2000>>>();
    expect("peek", cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
    expect("2,000 threads", cudaGetLastError(), cudaErrorInvalidConfiguration);
    expect("the error was taken", cudaGetLastError(), cudaSuccess);
    nothing<<<0, 32>>>();
    expect("no block", cudaGetLastError(), cudaErrorInvalidConfiguration);
    nothing<<<dim3(1, 70000), 32>>>();
    expect("70,000 blocks along y", cudaGetLastError(), cudaErrorInvalidConfiguration);
    nothing<<<1, 32, 1 << 20>>>();
    expect("a megabyte of shared memory", cudaGetLastError(), cudaErrorInvalidValue);
    void* p;
    expect("a petabyte", cudaMalloc(&p, size_t(1) << 50), cudaErrorMemoryAllocation);
    expect("a petabyte later", cudaGetLastError(), cudaErrorMemoryAllocation);
    expect("device 99", cudaSetDevice(99), cudaErrorInvalidDevice);
    cudaGetLastError();
    nothing<<<1, 1>>>();
    expect("a launch", cudaDeviceSynchronize(), cudaSuccess);
    expect("free of nothing", cudaFree(nullptr), cudaSuccess);
    good &= !strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress") && !strcmp(cudaGetErrorString(cudaSuccess), "no error");
    puts(good ? "OK" : "wrong");
    return !good;
}
