#include <cstdio>
#include <numeric>
#include <vector>
constexpr int BINS = 64;
__global__ void histogram_global(unsigned* bins, const unsigned char* data, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) atomicAdd(&bins[data[i] % BINS], 1u);
}
__global__ void histogram_shared(unsigned* bins, const unsigned char* data, int n)
{
    __shared__ unsigned local[BINS];
    for (int i = threadIdx.x; i < BINS; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) atomicAdd(local + data[i] % BINS, 1);
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}
int main()
{
    const int n = 4000;
    std::vector<unsigned char> data(n);
    std::vector<unsigned> expected(BINS), got(BINS);
    for (int i = 0; i < n; i++) expected[(data[i] = (i * 7919) >> 3) % BINS]++;
    unsigned char* d; unsigned* bins;
    cudaMalloc(&d, n), cudaMalloc(&bins, BINS * sizeof(unsigned));
    cudaMemcpy(d, data.data(), n, cudaMemcpyHostToDevice);
    for (int kernel = 0; kernel < 2; kernel++) {
        cudaMemset(bins, 0, BINS * sizeof(unsigned));
        (kernel ? histogram_shared : histogram_global)<<<4, 128>>>(bins, d, n);
        cudaMemcpy(got.data(), bins, BINS * sizeof(unsigned), cudaMemcpyDeviceToHost);
        if (got != expected) return printf("kernel %d is wrong\n", kernel), 1;
    }
    printf("OK %u\n", std::accumulate(got.begin(), got.end(), 0u));
}
