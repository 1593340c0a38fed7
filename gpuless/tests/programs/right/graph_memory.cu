#include <cstdio>
// Memory that a graph allocates: freed by a node, by the host or in a stream, and there again at the next launch.
__global__ void fill(int* x, int value) { x[threadIdx.x] = value + threadIdx.x; }
__global__ void add(const int* x, int* out) { out[threadIdx.x] += x[threadIdx.x]; }
int main()
{
    int h[32] = {}, *out, *scratch, *kept;
    cudaStream_t s;
    cudaStreamCreate(&s);
    cudaMalloc(&out, sizeof h), cudaMemset(out, 0, sizeof h);
    cudaGraph_t graph;
    cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
    cudaMallocAsync((void**)&scratch, sizeof h, s);
    fill<<<1, 32, 0, s>>>(scratch, 1);
    add<<<1, 32, 0, s>>>(scratch, out);
    cudaFreeAsync(scratch, s);
    cudaMallocAsync((void**)&kept, sizeof h, s);
    fill<<<1, 32, 0, s>>>(kept, 100);
    cudaStreamEndCapture(s, &graph);
    cudaGraphExec_t exec;
    cudaGraphInstantiate(&exec, graph, 0);
    for (int round = 0; round < 4; round++) {
        cudaGraphLaunch(exec, s);
        add<<<1, 32, 0, s>>>(kept, out);
        if (round % 2)
            cudaFreeAsync(kept, s);
        else
            cudaStreamSynchronize(s), cudaFree(kept);
    }
    cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost);
    const bool good = h[0] == 404 && h[31] == 4 * (101 + 62);
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(s), cudaFree(out);
    puts(good ? "OK" : "wrong");
    return !good;
}
