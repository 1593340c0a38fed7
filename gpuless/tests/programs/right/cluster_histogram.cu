#include <cooperative_groups.h>
#include <cstdio>
#include <vector>
namespace cg = cooperative_groups;
__global__ void histogram(int* bins, const int nbins, const int per_block, const int* __restrict__ input, size_t n)
{
    extern __shared__ int smem[];
    cg::cluster_group cluster = cg::this_cluster();
    int size = cluster.dim_blocks().x;
    for (int i = threadIdx.x; i < per_block; i += blockDim.x) smem[i] = 0;
    cluster.sync();
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
        int bin = input[i] < 0 ? 0 : input[i] >= nbins ? nbins - 1 : input[i];
        int* remote = cluster.map_shared_rank(smem, bin / per_block);
        atomicAdd(remote + bin % per_block, 1);
    }
    cluster.sync();
    int* mine = bins + cluster.block_rank() * per_block;
    for (int i = threadIdx.x; i < per_block; i += blockDim.x) atomicAdd(&mine[i], smem[i]);
    (void)size;
}
__global__ void __cluster_dims__(2, 1, 1) swap(int* out)
{
    __shared__ int mine;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) mine = blockIdx.x;
    cluster.sync();
    if (threadIdx.x == 0) out[blockIdx.x] = *cluster.map_shared_rank(&mine, cluster.block_rank() ^ 1);
    cluster.sync();
}
int main()
{
    const int n = 3000, nbins = 64, cluster = 4, per_block = nbins / cluster;
    std::vector<int> h(n), expected(nbins), got(nbins);
    for (int i = 0; i < n; i++) expected[h[i] = i * i % nbins]++;
    int *bins, *in;
    cudaMalloc(&bins, nbins * 4), cudaMalloc(&in, n * 4);
    cudaMemset(bins, 0, nbins * 4);
    cudaMemcpy(in, h.data(), n * 4, cudaMemcpyHostToDevice);
    cudaLaunchConfig_t config = {};
    config.gridDim = 8, config.blockDim = 64, config.dynamicSmemBytes = per_block * sizeof(int);
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = cluster, attribute[0].val.clusterDim.y = 1, attribute[0].val.clusterDim.z = 1;
    config.numAttrs = 1, config.attrs = attribute;
    cudaError_t e = cudaLaunchKernelEx(&config, histogram, bins, nbins, per_block, (const int*)in, (size_t)n);
    if (e != cudaSuccess) return printf("%s\n", cudaGetErrorString(e)), 1;
    cudaMemcpy(got.data(), bins, nbins * 4, cudaMemcpyDeviceToHost);
    if (got != expected) return printf("wrong\n"), 1;
    swap<<<4, 32>>>(bins);
    cudaMemcpy(got.data(), bins, 16, cudaMemcpyDeviceToHost);
    printf(got[0] == 1 && got[1] == 0 && got[2] == 3 && got[3] == 2 ? "OK\n" : "swap is wrong\n");
}
