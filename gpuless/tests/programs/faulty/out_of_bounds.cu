#include <cstdio>
__global__ void fill(float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) out[i] = i;  // fault: bounds
}
int main()
{
    float* out;
    cudaMalloc(&out, 100 * sizeof(float));
    fill<<<1, 128>>>(out, 100);
    printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
