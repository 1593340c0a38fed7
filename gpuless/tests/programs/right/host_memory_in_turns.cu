// The host uses one half of pinned memory while the other is copied, and managed memory that no pending kernel touches.
#include <cstdio>
__global__ void twice(const int* x, int* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}
int main()
{
    const int n = 3000, parts = 6;
    int *staging, *x, *out, *other, wrong = 0;
    cudaStream_t stream;
    cudaEvent_t copied[2];
    cudaMallocHost(&staging, 2 * n * sizeof(int)), cudaMalloc(&x, parts * n * sizeof(int));
    cudaMallocManaged(&out, 2 * parts * n * sizeof(int)), cudaMallocManaged(&other, n * sizeof(int));
    cudaStreamCreate(&stream);
    for (cudaEvent_t& event : copied) cudaEventCreate(&event);
    for (int part = 0; part < parts; part++) {
        int* const half = staging + part % 2 * n;
        if (part > 1) cudaEventSynchronize(copied[part % 2]);
        for (int i = 0; i < n; i++) half[i] = part * n + i;
        cudaMemcpyAsync(x + part * n, half, n * sizeof(int), cudaMemcpyHostToDevice, stream);
        cudaEventRecord(copied[part % 2], stream);
    }
    twice<<<(parts * n + 255) / 256, 256, 0, stream>>>(x, out, parts * n);
    for (int i = 0; i < n; i++) other[i] = staging[n + i];             // which the last copy only reads
    for (int i = 0; i < parts * n; i++) out[parts * n + i] = 1;        // the half that the kernel does not write
    cudaStreamSynchronize(stream);
    for (int i = 0; i < parts * n; i++) wrong += out[i] != 2 * i || out[parts * n + i] != 1;
    for (int i = 0; i < n; i++) wrong += other[i] != 5 * n + i;
    puts(wrong ? "WRONG" : "OK");
    cudaFreeHost(staging), cudaFree(x), cudaFree(out), cudaFree(other), cudaStreamDestroy(stream);
    for (cudaEvent_t event : copied) cudaEventDestroy(event);
    return wrong != 0;
}
