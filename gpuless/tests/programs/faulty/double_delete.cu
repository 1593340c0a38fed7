#include <cstdio>
__global__ void twice(int* out)
{
    int* one = new int(3);
    *out = *one;
    delete one;
    delete one;  // fault: trap
}
int main()
{
    int* out;
    cudaMalloc(&out, 4);
    twice<<<1, 1>>>(out);
    return cudaDeviceSynchronize() != cudaSuccess;
}
