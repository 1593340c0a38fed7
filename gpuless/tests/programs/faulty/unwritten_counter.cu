#include <cstdio>
__global__ void keep(const int* in, int* out, int* count, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && in[i] > 0) {
        const int at = atomicAdd(count, 1);  // fault: unwritten
        out[at] = in[i];
    }
}
int main()
{
    const int n = 64;
    int h[n], *in, *out, *count;
    for (int i = 0; i < n; i++) h[i] = i % 3;
    cudaMalloc(&in, sizeof h), cudaMalloc(&out, sizeof h), cudaMalloc(&count, sizeof(int));
    cudaMemcpy(in, h, sizeof h, cudaMemcpyHostToDevice);
    keep<<<2, 32>>>(in, out, count, n);
    puts(cudaGetErrorString(cudaDeviceSynchronize()));
    cudaFree(in), cudaFree(out), cudaFree(count);
}
