// A prefix sum of more numbers than a block has threads.
#include <cstdio>
#include <excl_blk_prefix_sum.h>

struct Reader
{
    const int* from;
    __device__ int get(int n) const { return from[n]; }
};
struct Writer
{
    int* to;
    __device__ void set(int n, int value) { to[n] = value; }
};
struct Total
{
    int* to;
    __device__ void set(int value) { *to = value; }
};

__global__ void prefix(int n, const int* from, int* to, int* total)
{
    Reader reader{from};
    Writer writer{to};
    Total sum{total};
    ExclusivePrefixSum::IgnoreWriteMapping none;
    ExclusivePrefixSum::Block<Reader, Writer, Total> block(n, reader, writer, sum, none);
}

int main()
{
    int *from, *to, *total;
    cudaMalloc(&from, 12000), cudaMalloc(&to, 12000), cudaMalloc(&total, 4);
    cudaMemset(from, 0, 12000);
    prefix<<<1, dim3(32, 32)>>>(3000, from, to, total);
    return cudaDeviceSynchronize();
}
