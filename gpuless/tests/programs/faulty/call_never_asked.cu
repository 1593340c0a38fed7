// More memory than the GPU has, and the result of cudaMalloc is not looked at.
#include <cstdio>

int main()
{
    float* all = nullptr;
    if (cudaFree(nullptr) == cudaSuccess)
        cudaMalloc(&all, size_t(1) << 50);  // fault: unasked
    printf("%p\n", static_cast<void*>(all));
}
