#include <cstdio>
const int REACH = 3, BLOCK = 128;
__global__ void stencil(const float* in, float* out, int n)
{
    __shared__ float tile[BLOCK + 2 * REACH];
    const int i = blockIdx.x * BLOCK + threadIdx.x, t = threadIdx.x + REACH;
    if (i < n) tile[t] = in[i];
    __syncthreads();
    if (i >= n) return;
    float sum = 0;
    for (int k = -REACH; k <= REACH; k++) sum += tile[t + k];  // fault: unwritten
    out[i] = sum;
}
int main()
{
    const int n = 1000;
    float *a, *b;
    cudaMalloc(&a, n * sizeof(float)), cudaMalloc(&b, n * sizeof(float));
    cudaMemset(a, 0, n * sizeof(float));
    stencil<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(a, b, n);
    cudaDeviceSynchronize();
    cudaFree(a), cudaFree(b);
    puts("PASSED");
}
