// Two reductions back to back: the second one writes what the first still reads.
#define __forceinline__ inline
#include <cut.cuh>

__global__ void twice(const float* x, float* out)
{
    extern __shared__ float shared[];
    const float first = reduce_block_into_lanes(shared, x[threadIdx.x]);
    const float second = reduce_block_into_lanes(shared, 2 * x[threadIdx.x]);
    if (threadIdx.x == 0) out[0] = first, out[1] = second;
}

int main()
{
    float *x, *out;
    cudaMalloc(&x, 1024), cudaMalloc(&out, 8);
    cudaMemset(x, 0, 1024);
    twice<<<1, 256, 1024>>>(x, out);
    return cudaDeviceSynchronize();
}
