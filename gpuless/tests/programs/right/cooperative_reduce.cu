#include <cooperative_groups.h>
#include <cstdio>
#include <vector>
namespace cg = cooperative_groups;
__global__ void reduce(const float* in, float* partial, float* out, int n)
{
    cg::grid_group grid = cg::this_grid();
    cg::thread_block block = cg::this_thread_block();
    __shared__ float s[128];
    float sum = 0;
    for (int i = grid.thread_rank(); i < n; i += grid.size()) sum += in[i];
    s[block.thread_rank()] = sum;
    block.sync();
    for (int k = block.size() / 2; k > 0; k /= 2) {
        if (block.thread_rank() < k) s[block.thread_rank()] += s[block.thread_rank() + k];
        cg::sync(block);
    }
    if (block.thread_rank() == 0) partial[blockIdx.x] = s[0];
    grid.sync();
    if (grid.thread_rank() == 0) {
        float total = 0;
        for (int i = 0; i < gridDim.x; i++) total += partial[i];
        *out = total;
    }
}
int main()
{
    int n = 10000, supported = 0, per_sm = 0;
    cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, 0);
    if (!supported) return printf("no cooperative launch\n"), 1;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, reduce, 128, 0);
    std::vector<float> h(n, 0.5f);
    float *in, *partial, *out, r;
    int blocks = 8;
    cudaMalloc(&in, n * 4), cudaMalloc(&partial, blocks * 4), cudaMalloc(&out, 4);
    cudaMemcpy(in, h.data(), n * 4, cudaMemcpyHostToDevice);
    void* args[] = {(void*)&in, (void*)&partial, (void*)&out, (void*)&n};
    cudaError_t e = cudaLaunchCooperativeKernel((void*)reduce, dim3(blocks), dim3(128), args, 0, 0);
    if (e != cudaSuccess) return printf("%s\n", cudaGetErrorString(e)), 1;
    cudaMemcpy(&r, out, 4, cudaMemcpyDeviceToHost);
    if (cudaLaunchCooperativeKernel((void*)reduce, dim3(1 << 20), dim3(128), args, 0, 0) != cudaErrorCooperativeLaunchTooLarge) return printf("not refused\n"), 1;
    cudaGetLastError();
    printf(r == 5000 && per_sm == 16 ? "OK\n" : "%f %d\n", r, per_sm);
}
