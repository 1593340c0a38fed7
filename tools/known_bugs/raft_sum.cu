// Sums of 40 columns, in blocks of 32.
#define RAFT_KERNEL static __global__ void
#define myAtomicAdd atomicAdd
namespace raft {
using ::atomicAdd;
}
#include <cut.cuh>

int main()
{
    float *x, *sums;
    cudaMalloc(&x, 40 * 64 * 4), cudaMalloc(&sums, 40 * 4);
    cudaMemset(x, 0, 40 * 64 * 4), cudaMemset(sums, 0, 40 * 4);
    sumKernelRowMajor<float, int, 256, 32><<<dim3(2, 2), 256>>>(sums, x, 40, 64);
    return cudaDeviceSynchronize();
}
