#include <cassert>
__global__ void check(int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(i < n);  // fault: trap
}
int main()
{
    check<<<2, 32>>>(60);
    cudaDeviceSynchronize();
}
