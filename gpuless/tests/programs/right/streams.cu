#include <cstdio>
#define CHECK(call) { const cudaError_t error = call; if (error != cudaSuccess) { printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(error)); return 1; } }
__global__ void scale(float* x, float a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= a; }
__global__ void sum_of(float* y, const float* a, const float* b, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = a[i] + b[i]; }
int main()
{
    const int n = 1000, parts = 4;
    float *h, *r, *d[parts], *y;
    CHECK(cudaMallocHost(&h, n * sizeof(float)));
    CHECK(cudaHostAlloc(&r, parts * n * sizeof(float), cudaHostAllocDefault));
    for (int i = 0; i < n; i++) h[i] = i;
    cudaStream_t streams[parts];
    cudaEvent_t ready[parts], start, stop;
    CHECK(cudaEventCreate(&start)); CHECK(cudaEventCreate(&stop));
    CHECK(cudaEventRecord(start));
    for (int p = 0; p < parts; p++) {
        CHECK(cudaStreamCreateWithFlags(&streams[p], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&ready[p], cudaEventDisableTiming));
        CHECK(cudaMalloc(&d[p], n * sizeof(float)));
        CHECK(cudaMemcpyAsync(d[p], h, n * sizeof(float), cudaMemcpyHostToDevice, streams[p]));
        scale<<<(n + 255) / 256, 256, 0, streams[p]>>>(d[p], p + 1, n);
        CHECK(cudaMemcpyAsync(r + p * n, d[p], n * sizeof(float), cudaMemcpyDeviceToHost, streams[p]));
        CHECK(cudaEventRecord(ready[p], streams[p]));
    }
    CHECK(cudaMalloc(&y, n * sizeof(float)));
    CHECK(cudaStreamWaitEvent(streams[0], ready[1], 0));
    sum_of<<<4, 256, 0, streams[0]>>>(y, d[0], d[1], n);
    CHECK(cudaStreamSynchronize(streams[0]));
    CHECK(cudaEventRecord(stop));
    CHECK(cudaEventSynchronize(stop));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, start, stop));
    while (cudaStreamQuery(streams[3]) == cudaErrorNotReady) {}
    CHECK(cudaDeviceSynchronize());
    for (int p = 0; p < parts; p++) for (int i = 0; i < n; i++) if (r[p * n + i] != (p + 1) * h[i]) return printf("part %d wrong at %d\n", p, i), 1;
    CHECK(cudaMemcpy(r, y, n * sizeof(float), cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) if (r[i] != 3 * h[i]) return printf("sum wrong at %d\n", i), 1;
    for (int p = 0; p < parts; p++) { cudaStreamDestroy(streams[p]); cudaFree(d[p]); cudaEventDestroy(ready[p]); }
    cudaFreeHost(h), cudaFreeHost(r), cudaFree(y);
    printf("OK\n");
}
