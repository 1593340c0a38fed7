#include <cstdio>
__global__ void fill(int* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = i;
}
int main()
{
    const int n = 100000;
    int *out, wrong = 0;
    cudaMallocManaged(&out, n * sizeof(int));
    fill<<<(n + 255) / 256, 256>>>(out, n);  // fault: race
    for (int i = 0; i < n; i++) wrong += out[i] != i;
    printf("%d wrong\n", wrong);
    cudaDeviceSynchronize();
    cudaFree(out);
}
