#include <cstdio>
#include <vector>
__global__ void blelloch(int* data, int* sums, int n)
{
    extern __shared__ int temp[];
    int tid = threadIdx.x, offset = 1, base = 2 * blockDim.x * blockIdx.x, m = 2 * blockDim.x;
    temp[2 * tid] = base + 2 * tid < n ? data[base + 2 * tid] : 0;
    temp[2 * tid + 1] = base + 2 * tid + 1 < n ? data[base + 2 * tid + 1] : 0;
    for (int d = m >> 1; d > 0; d >>= 1, offset *= 2) {
        __syncthreads();
        if (tid < d) temp[offset * (2 * tid + 2) - 1] += temp[offset * (2 * tid + 1) - 1];
    }
    __syncthreads();
    if (tid == 0) { if (sums) sums[blockIdx.x] = temp[m - 1]; temp[m - 1] = 0; }
    for (int d = 1; d < m; d *= 2) {
        offset >>= 1;
        __syncthreads();
        if (tid < d) {
            int a = offset * (2 * tid + 1) - 1, b = offset * (2 * tid + 2) - 1, t = temp[a];
            temp[a] = temp[b], temp[b] += t;
        }
    }
    __syncthreads();
    if (base + 2 * tid < n) data[base + 2 * tid] = temp[2 * tid];
    if (base + 2 * tid + 1 < n) data[base + 2 * tid + 1] = temp[2 * tid + 1];
}
__global__ void add(int* data, const int* sums, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += sums[blockIdx.x];
}
int main()
{
    const int n = 1000, threads = 64, blocks = (n + 2 * threads - 1) / (2 * threads);
    std::vector<int> h(n), r(n);
    for (int i = 0; i < n; i++) h[i] = i % 13 - 4;
    int *d, *sums;
    cudaMalloc(&d, n * sizeof(int)), cudaMalloc(&sums, blocks * sizeof(int));
    cudaMemcpy(d, h.data(), n * sizeof(int), cudaMemcpyHostToDevice);
    blelloch<<<blocks, threads, 2 * threads * sizeof(int)>>>(d, sums, n);
    blelloch<<<1, 8, 16 * sizeof(int)>>>(sums, NULL, blocks);
    add<<<blocks, 2 * threads>>>(d, sums, n);
    cudaMemcpy(r.data(), d, n * sizeof(int), cudaMemcpyDeviceToHost);
    for (int i = 0, sum = 0; i < n; sum += h[i++]) if (r[i] != sum) return printf("wrong at %d: %d, not %d\n", i, r[i], sum), 1;
    printf("OK\n");
}
