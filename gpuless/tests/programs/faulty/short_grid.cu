// A grid that is rounded down: the numbers behind its last whole block are never computed.
#include <cmath>
#include <cstdio>
#include <vector>
__global__ void add(const float* a, const float* b, float* c, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
int main()
{
    const int n = 5000;
    std::vector<float> a(n, 1.0f), b(n, 2.0f), c(n);
    float *da, *db, *dc;
    cudaMalloc(&da, n * sizeof(float)), cudaMalloc(&db, n * sizeof(float)), cudaMalloc(&dc, n * sizeof(float));
    cudaMemcpy(da, a.data(), n * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(db, b.data(), n * sizeof(float), cudaMemcpyHostToDevice);
    add<<<n / 256, 256>>>(da, db, dc, n);
    cudaMemcpy(c.data(), dc, n * sizeof(float), cudaMemcpyDeviceToHost);  // fault: unwritten
    for (int i = 0; i < n; i++)
        if (std::fabs(c[i] - 3.0f) > 1e-5f) return 1;
    puts("Test PASSED");
    cudaFree(da), cudaFree(db), cudaFree(dc);
}
