#include <cstdio>
#include <vector>
__global__ void saxpy(int n, float a, const float* x, float* y)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
int main()
{
    const int n = 1 << 20;
    std::vector<float> x(n), y(n), out(n);
    for (int i = 0; i < n; i++) x[i] = float(i % 1000), y[i] = float(i % 77);
    float *dx, *dy;
    cudaMalloc(&dx, n * sizeof(float));
    cudaMalloc(&dy, n * sizeof(float));
    cudaMemcpy(dx, x.data(), n * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(dy, y.data(), n * sizeof(float), cudaMemcpyHostToDevice);
    saxpy<<<(n + 255) / 256, 256>>>(n, 3.0f, dx, dy);
    cudaMemcpy(out.data(), dy, n * sizeof(float), cudaMemcpyDeviceToHost);
    cudaFree(dx), cudaFree(dy);
    for (int i = 0; i < n; i++)
        if (out[i] != 3.0f * x[i] + y[i]) return printf("wrong at %d\n", i), 1;
    puts("OK");
}
