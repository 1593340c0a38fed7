#include <cstdio>
__global__ void twice(int* x, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}
int main()
{
    const int n = 5000, parts = 4;
    int *staging, *x;
    cudaStream_t stream;
    cudaMallocHost(&staging, n * sizeof(int)), cudaMalloc(&x, parts * n * sizeof(int)), cudaStreamCreate(&stream);
    for (int part = 0; part < parts; part++) {
        for (int i = 0; i < n; i++) staging[i] = part * n + i;
        cudaMemcpyAsync(x + part * n, staging, n * sizeof(int), cudaMemcpyHostToDevice, stream);  // fault: race
    }
    twice<<<(parts * n + 255) / 256, 256, 0, stream>>>(x, parts * n);
    cudaStreamSynchronize(stream);
    cudaFree(x), cudaFreeHost(staging), cudaStreamDestroy(stream);
}
