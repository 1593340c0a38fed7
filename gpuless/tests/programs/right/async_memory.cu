#include <cstdio>
#include <vector>
namespace { __global__ void fill(int* p, int v, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) p[i] = v; } }
int main()
{
    cudaStream_t s;
    cudaStreamCreate(&s);
    cudaMemPool_t pool;
    unsigned long long threshold = ~0ull;
    cudaDeviceGetDefaultMemPool(&pool, 0), cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold);
    std::vector<int> h(100);
    size_t before = 0, after, total;
    for (int round = 0; round < 3; round++) {
        int* p = nullptr;
        if (cudaMallocAsync(&p, 400, s) != cudaSuccess) return 1;
        fill<<<1, 128, 0, s>>>(p, round, 100);
        cudaMemcpyAsync(h.data(), p, 400, cudaMemcpyDeviceToHost, s);
        cudaFreeAsync(p, s);
        cudaStreamSynchronize(s);
        for (int x : h) if (x != round) return puts("wrong"), 1;
        cudaMemGetInfo(&after, &total);
        if (!round) before = after;  // the pool keeps what the first round took
    }
    puts(before == after && cudaStreamDestroy(s) == cudaSuccess ? "OK" : "not freed");
}
