#include <cstdio>
#include <vector>
#define CHECK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("line %d: %s\n", __LINE__, cudaGetErrorString(e)); exit(1); } } while (0)
__global__ void add_one(int* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] += 1; }
__global__ void combine(int* out, const int* a, const int* b, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = a[i] + 10 * b[i]; }
int main()
{
    int n = 300, *a, *b, *out;
    CHECK(cudaMalloc(&a, n * 4)); CHECK(cudaMalloc(&b, n * 4)); CHECK(cudaMalloc(&out, n * 4));
    CHECK(cudaMemset(a, 0, n * 4)); CHECK(cudaMemset(b, 0, n * 4));
    cudaStream_t s1, s2;
    cudaEvent_t fork, join;
    CHECK(cudaStreamCreate(&s1)); CHECK(cudaStreamCreate(&s2)); CHECK(cudaEventCreate(&fork)); CHECK(cudaEventCreate(&join));
    cudaGraph_t graph; cudaGraphExec_t exec;
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaStreamBeginCapture(s1, cudaStreamCaptureModeGlobal));
    CHECK(cudaEventRecord(fork, s1)); CHECK(cudaStreamWaitEvent(s2, fork, 0));
    add_one<<<3, 128, 0, s1>>>(a, n);
    add_one<<<3, 128, 0, s2>>>(b, n);
    add_one<<<3, 128, 0, s2>>>(b, n);
    CHECK(cudaEventRecord(join, s2)); CHECK(cudaStreamWaitEvent(s1, join, 0));
    combine<<<3, 128, 0, s1>>>(out, a, b, n);
    CHECK(cudaStreamEndCapture(s1, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, NULL, NULL, 0));
    for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(exec, s1));
    CHECK(cudaStreamSynchronize(s1));
    std::vector<int> r(n);
    CHECK(cudaMemcpy(r.data(), out, n * 4, cudaMemcpyDeviceToHost));
    for (int x : r) if (x != 3 + 60) return printf("captured: %d\n", x), 1;
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    if (nodes != 4) return printf("%zu nodes\n", nodes), 1;

    cudaGraph_t by_hand; cudaGraphNode_t set, kernel1, kernel2, copy;
    CHECK(cudaGraphCreate(&by_hand, 0));
    cudaMemsetParams zero = {};
    zero.dst = a, zero.value = 0, zero.elementSize = 4, zero.width = n, zero.height = 1;
    CHECK(cudaGraphAddMemsetNode(&set, by_hand, nullptr, 0, &zero));
    cudaKernelNodeParams params = {};
    void* args[] = {&a, &n};
    params.func = (void*)add_one, params.gridDim = dim3(3), params.blockDim = dim3(128), params.kernelParams = args;
    CHECK(cudaGraphAddKernelNode(&kernel1, by_hand, &set, 1, &params));
    CHECK(cudaGraphAddKernelNode(&kernel2, by_hand, &kernel1, 1, &params));
    CHECK(cudaGraphAddMemcpyNode1D(&copy, by_hand, &kernel2, 1, r.data(), a, n * 4, cudaMemcpyDeviceToHost));
    cudaGraphExec_t again;
    CHECK(cudaGraphInstantiate(&again, by_hand, 0));
    CHECK(cudaGraphLaunch(again, s2)); CHECK(cudaStreamSynchronize(s2));
    for (int x : r) if (x != 2) return printf("by hand: %d\n", x), 1;
    CHECK(cudaGraphExecDestroy(exec)); CHECK(cudaGraphDestroy(graph)); CHECK(cudaGraphExecDestroy(again)); CHECK(cudaGraphDestroy(by_hand));
    cudaFree(a), cudaFree(b), cudaFree(out);
    printf("OK\n");
}
