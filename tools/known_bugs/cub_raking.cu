// A raking reduction of 100 threads, whose 25 raking threads are reduced in shared memory.
#include <cub/block/block_reduce.cuh>

__global__ void reduce(const int* x, int* out)
{
    using Reduce = cub::BlockReduce<int, 100, cub::BLOCK_REDUCE_RAKING>;
    __shared__ typename Reduce::TempStorage storage;
    const int sum = Reduce(storage).Sum(x[threadIdx.x]);
    if (threadIdx.x == 0) *out = sum;
}

int main()
{
    int *x, *out;
    cudaMalloc(&x, 400), cudaMalloc(&out, 4);
    cudaMemset(x, 1, 400);
    reduce<<<1, 100>>>(x, out);
    return cudaDeviceSynchronize();
}
