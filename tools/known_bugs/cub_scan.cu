// An inclusive scan of a type that is not primitive, over several tiles.
#include <cub/device/device_scan.cuh>

struct Pair
{
    long long a, b, c;
    __host__ __device__ Pair operator+(const Pair& other) const { return {a + other.a, b + other.b, c + other.c}; }
};

struct Plus
{
    __host__ __device__ Pair operator()(const Pair& x, const Pair& y) const { return x + y; }
};

int main()
{
    const int n = 20000;
    Pair *x, *out;
    cudaMalloc(&x, n * sizeof(Pair)), cudaMalloc(&out, n * sizeof(Pair));
    cudaMemset(x, 1, n * sizeof(Pair));
    void* room = nullptr;
    size_t bytes = 0;
    cub::DeviceScan::InclusiveScan(room, bytes, x, out, Plus{}, n);
    cudaMalloc(&room, bytes);
    cub::DeviceScan::InclusiveScan(room, bytes, x, out, Plus{}, n);
    return cudaDeviceSynchronize();
}
