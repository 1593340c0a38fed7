#include <cstdio>
#include <vector>
__global__ void add(const float* a, float* b, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] += a[i];
}
int main()
{
    const int n = 1000;
    std::vector<float> h(n, 1);
    float *a, *b;
    cudaMalloc(&a, n * sizeof(float)), cudaMalloc(&b, n * sizeof(float));
    cudaMemcpy(a, h.data(), n * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemset(b, 0, n * sizeof(float));
    add<<<(n + 127) / 128, 128>>>(a, b, n);
    cudaMemcpy(h.data(), b, n, cudaMemcpyDeviceToHost);  // fault: copy
    cudaFree(a), cudaFree(b);
    puts("PASSED");
}
