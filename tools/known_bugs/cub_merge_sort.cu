// A merge sort of several tiles, whose kernels are launched as dependent ones.
#include <cub/device/device_merge_sort.cuh>

#include <vector>

struct Less
{
    __host__ __device__ bool operator()(int x, int y) const { return x < y; }
};

int main()
{
    const int n = 20000;
    std::vector<int> host(n);
    for (int i = 0; i < n; i++) host[i] = i * 7919 % n;
    int* x;
    cudaMalloc(&x, n * sizeof(int));
    cudaMemcpy(x, host.data(), n * sizeof(int), cudaMemcpyHostToDevice);
    void* room = nullptr;
    size_t bytes = 0;
    cub::DeviceMergeSort::SortKeys(room, bytes, x, n, Less{});
    cudaMalloc(&room, bytes);
    cub::DeviceMergeSort::SortKeys(room, bytes, x, n, Less{});
    return cudaDeviceSynchronize();
}
