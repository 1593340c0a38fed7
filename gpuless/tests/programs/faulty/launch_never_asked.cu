// A block of 2,048 threads is refused, and nothing asks for the error.
#include <cstdio>

__global__ void set(float* out) { out[threadIdx.x] = 1.0f; }

int main()
{
    float *out, one;
    cudaMalloc(&out, 8192);
    cudaMemset(out, 0, 8192);
    set<<<1, 2048>>>(out);  // fault: unasked
    cudaMemcpy(&one, out, sizeof one, cudaMemcpyDeviceToHost);
    printf("%g\n", one);
    cudaFree(out);
}
