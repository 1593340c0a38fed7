#include <cstdio>
__constant__ float weights[9];
__global__ void blur(float* out, int reach)
{
    float sum = 0;
    for (int k = 0; k <= reach; k++) sum += (k + threadIdx.x) * weights[k];  // fault: bounds
    out[threadIdx.x] = sum;
}
int main()
{
    const float ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    float* out;
    cudaMemcpyToSymbol(weights, ones, sizeof ones);
    cudaMalloc(&out, 128);
    blur<<<1, 32>>>(out, 9);
    puts(cudaGetErrorString(cudaDeviceSynchronize()));
    cudaFree(out);
}
