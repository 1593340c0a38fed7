#include <cstdio>
__global__ void fill(float* out, float* other, int n)
{
    if (threadIdx.x < n) out[threadIdx.x] = 1;
}
int main()
{
    float *out, *other, host[64];
    cudaMalloc(&out, sizeof host), cudaMalloc(&other, sizeof host);
    fill<<<1, 64>>>(out, other, 64);
    cudaMemcpy(host, other, sizeof host, cudaMemcpyDeviceToHost);  // fault: unwritten
    printf("%f\n", host[0]);
    cudaFree(out), cudaFree(other);
}
