#include <cstdio>
#include <vector>

__global__ void scale(float* x, float by, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}

int main()
{
    const int n = 1000;
    std::vector<float> host(n, 3.0f);
    float* x = nullptr;
    cudaMalloc(&x, n * sizeof(float));
    cudaMemcpy(x, host.data(), n * sizeof(float), cudaMemcpyHostToDevice);
    scale<<<(n + 255) / 256, 256>>>(x, 2.0f, n);
    cudaMemcpy(host.data(), x, n * sizeof(float), cudaMemcpyDeviceToHost);
    cudaFree(x);
    for (float one : host)
        if (one != 6.0f) return printf("wrong\n"), 1;
    return 0;
}
