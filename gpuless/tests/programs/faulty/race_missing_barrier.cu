#include <cstdio>

__global__ void rotate(float* out)
{
    __shared__ float s[128];
    s[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = s[(threadIdx.x + 32) % 128];  // fault: race
}

int main()
{
    float* out;
    cudaMalloc(&out, 128 * sizeof(float));
    rotate<<<1, 128>>>(out);
    return cudaDeviceSynchronize() != cudaSuccess;
}
