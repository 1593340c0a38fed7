#include <cstdio>
__global__ void sums(const float* in, float* out)
{
    __shared__ float s[256];
    float sum = s[threadIdx.x];  // fault: unwritten
    s[threadIdx.x] = in[blockIdx.x * 256 + threadIdx.x];
    __syncthreads();
    for (int i = 0; i < 4; i++) sum += s[(threadIdx.x + i) % 256];
    out[blockIdx.x * 256 + threadIdx.x] = sum;
}
int main()
{
    float *a, *b;
    cudaMalloc(&a, 4096), cudaMalloc(&b, 4096);
    cudaMemset(a, 0, 4096);
    sums<<<4, 256>>>(a, b);
    cudaDeviceSynchronize();
    cudaFree(a), cudaFree(b);
    puts("PASSED");
}
