// Streams that events, waits, the default stream and a graph's edges order, and streams that share a buffer's halves.
#include <cstdio>

__global__ void set(float* x, float to) { x[threadIdx.x] = to; }
__global__ void add(const float* x, float* y) { y[threadIdx.x] += x[threadIdx.x]; }
__global__ void count(int* n) { atomicAdd(n, 1); }

int main()
{
    float *x, *y, result[128];
    int *n, counted;
    cudaMalloc(&x, sizeof result);
    cudaMalloc(&y, sizeof result);
    cudaMalloc(&n, sizeof(int));
    cudaMemset(y, 0, sizeof result);
    cudaMemset(n, 0, sizeof(int));
    cudaStream_t s[2];
    cudaEvent_t done;
    cudaEventCreate(&done);
    for (cudaStream_t& one : s) cudaStreamCreate(&one);
    for (int i = 0; i < 2; i++) set<<<1, 64, 0, s[i]>>>(x + 64 * i, float(i + 1));  // of halves
    for (int i = 0; i < 2; i++) count<<<1, 64, 0, s[i]>>>(n);                       // by atomics
    cudaEventRecord(done, s[0]);
    cudaStreamWaitEvent(s[1], done);
    add<<<1, 128, 0, s[1]>>>(x, y);   // behind both
    add<<<1, 128>>>(x, y);            // the default stream waits for all
    add<<<1, 128, 0, s[0]>>>(x, y);   // and all for it
    cudaStreamSynchronize(s[0]);
    cudaStreamBeginCapture(s[1], cudaStreamCaptureModeGlobal);
    set<<<1, 128, 0, s[1]>>>(x, 7.0f);
    cudaEventRecord(done, s[1]);
    cudaStreamWaitEvent(s[0], done);
    add<<<1, 128, 0, s[0]>>>(x, y);
    cudaEventRecord(done, s[0]);
    cudaStreamWaitEvent(s[1], done);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamEndCapture(s[1], &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    for (int i = 0; i < 3; i++) cudaGraphLaunch(exec, s[1]);
    cudaMemcpyAsync(result, y, sizeof result, cudaMemcpyDeviceToHost, s[1]);
    cudaStreamSynchronize(s[1]);
    cudaMemcpy(&counted, n, sizeof counted, cudaMemcpyDeviceToHost);
    printf("%s\n", result[3] == 24 && result[100] == 27 && counted == 128 ? "OK" : "wrong");
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    for (cudaStream_t one : s) cudaStreamDestroy(one);
    cudaFree(x);
    cudaFree(y);
    cudaFree(n);
}
