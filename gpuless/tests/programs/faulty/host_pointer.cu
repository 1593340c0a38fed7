#include <cstdlib>
__global__ void fill(float* out) { out[threadIdx.x] = 1; }  // fault: bounds
int main()
{
    float* out = (float*)malloc(128);
    fill<<<1, 32>>>(out);
    cudaDeviceSynchronize();
}
