#include <cub/cub.cuh>
#include <cub/device/device_reduce.cuh>
#include <cuda/std/functional>
#include <thrust/iterator/transform_iterator.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <vector>
#define CHECK(x) do { cudaError_t e = (x); if (e) { printf("%s: %s\n", #x, cudaGetErrorString(e)); exit(1); } } while (0)

struct Even { __host__ __device__ bool operator()(int x) const { return x % 2 == 0; } };
struct Square { __host__ __device__ int operator()(int x) const { return x * x; } };
__global__ void fill(int* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = (i * 7919 + 13) % 1000 - 300; }

template <class F> void twice(F call)  // the size of the memory first, then the work
{
    void* memory = nullptr;
    size_t bytes = 0;
    CHECK(call(memory, bytes));
    CHECK(cudaMalloc(&memory, bytes));
    CHECK(call(memory, bytes));
    CHECK(cudaFree(memory));
}
std::vector<int> read(const int* d, int n)
{
    std::vector<int> h(n);
    CHECK(cudaMemcpy(h.data(), d, n * sizeof(int), cudaMemcpyDeviceToHost));
    return h;
}
void require(bool good, const char* what) { if (!good) printf("wrong: %s\n", what), exit(1); }

int main()
{
    const int n = 3000;
    int *x, *y, *z, *count;
    CHECK(cudaMalloc(&x, n * 4));
    CHECK(cudaMalloc(&y, n * 4));
    CHECK(cudaMalloc(&z, n * 4));
    CHECK(cudaMalloc(&count, 4));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    fill<<<(n + 255) / 256, 256, 0, stream>>>(x, n);

    twice([&](void* m, size_t& b) { return cub::DeviceReduce::Sum(m, b, x, y, n, stream); });
    CHECK(cudaStreamSynchronize(stream));
    const std::vector<int> h = read(x, n);
    require(read(y, 1)[0] == std::accumulate(h.begin(), h.end(), 0), "sum");
    twice([&](void* m, size_t& b) { return cub::DeviceReduce::Max(m, b, x, y, n, stream); });
    twice([&](void* m, size_t& b) { return cub::DeviceReduce::Reduce(m, b, thrust::make_transform_iterator(x, Square()), y + 1, n, cuda::std::plus<int>(), 0, stream); });
    CHECK(cudaStreamSynchronize(stream));
    require(read(y, 1)[0] == *std::max_element(h.begin(), h.end()), "max");
    require(read(y, 2)[1] == std::inner_product(h.begin(), h.end(), h.begin(), 0), "squares");

    twice([&](void* m, size_t& b) { return cub::DeviceScan::ExclusiveSum(m, b, x, y, n); });
    std::vector<int> scanned(n);
    std::exclusive_scan(h.begin(), h.end(), scanned.begin(), 0);
    require(read(y, n) == scanned, "exclusive sum");

    std::vector<int> sorted = h;
    std::stable_sort(sorted.begin(), sorted.end());
    std::vector<int> index(n);
    std::iota(index.begin(), index.end(), 0);
    int *from, *to;
    CHECK(cudaMalloc(&from, n * 4));
    CHECK(cudaMalloc(&to, n * 4));
    CHECK(cudaMemcpy(from, index.data(), n * 4, cudaMemcpyHostToDevice));
    twice([&](void* m, size_t& b) { return cub::DeviceRadixSort::SortPairs(m, b, x, y, from, to, n); });
    require(read(y, n) == sorted, "sorted keys");
    std::stable_sort(index.begin(), index.end(), [&](int a, int b) { return h[a] < h[b]; });
    require(read(to, n) == index, "sorted values");
    cub::DoubleBuffer<int> keys(y, z);
    twice([&](void* m, size_t& b) { return cub::DeviceRadixSort::SortKeysDescending(m, b, keys, n); });
    std::reverse(sorted.begin(), sorted.end());
    require(read(keys.Current(), n) == sorted, "descending");

    twice([&](void* m, size_t& b) { return cub::DeviceSelect::If(m, b, x, z, count, n, Even()); });
    std::vector<int> even;
    std::copy_if(h.begin(), h.end(), std::back_inserter(even), Even());
    require(read(count, 1)[0] == (int)even.size() && read(z, (int)even.size()) == even, "selected");

    twice([&](void* m, size_t& b) { return cub::DeviceHistogram::HistogramEven(m, b, x, y, 11, -300, 700, n); });
    std::vector<int> bins(10);
    for (int v : h) bins[(v + 300) / 100]++;
    require(read(y, 10) == bins, "histogram");

    twice([&](void* m, size_t& b) { return cub::DeviceRadixSort::SortKeys(m, b, x, y, n); });
    twice([&](void* m, size_t& b) { return cub::DeviceRunLengthEncode::Encode(m, b, y, z, to, count, n); });
    std::map<int, int> runs;
    for (int v : h) runs[v]++;
    require(read(count, 1)[0] == (int)runs.size(), "runs");
    std::vector<int> lengths = read(to, (int)runs.size()), values = read(z, (int)runs.size());
    int at = 0;
    for (auto [value, length] : runs) require(values[at] == value && lengths[at] == length, "a run"), at++;

    float f[4] = {2.5f, -1.0f, -0.0f, 0.25f}, *d_f, back[4];
    CHECK(cudaMalloc(&d_f, 32));
    CHECK(cudaMemcpy(d_f, f, 16, cudaMemcpyHostToDevice));
    twice([&](void* m, size_t& b) { return cub::DeviceRadixSort::SortKeys(m, b, d_f, d_f + 4, 4); });
    CHECK(cudaMemcpy(back, d_f + 4, 16, cudaMemcpyDeviceToHost));
    require(back[0] == -1.0f && back[1] == 0.0f && back[2] == 0.25f && back[3] == 2.5f, "floats");
    for (int* p : {x, y, z, count, from, to}) CHECK(cudaFree(p));
    CHECK(cudaFree(d_f));
    CHECK(cudaStreamDestroy(stream));
    puts("OK");
}
