#include <cstdio>
#include <vector>
__global__ void square(int* array, int count) { extern __shared__ int unused[]; int i = threadIdx.x + blockIdx.x * blockDim.x; if (i < count) array[i] *= array[i]; (void)unused; }
int main()
{
    cudaDeviceProp prop;
    int device, blocks, minGrid, block;
    cudaGetDevice(&device), cudaGetDeviceProperties(&prop, device);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, square, 32, 0);
    if (blocks != prop.maxBlocksPerMultiProcessor) return printf("%d blocks\n", blocks), 1;
    cudaOccupancyMaxPotentialBlockSize(&minGrid, &block, (void*)square, 0, 0);
    const int n = 1000;
    std::vector<int> h(n);
    for (int i = 0; i < n; i++) h[i] = i;
    int* d;
    cudaMalloc(&d, n * sizeof(int)), cudaMemcpy(d, h.data(), n * sizeof(int), cudaMemcpyHostToDevice);
    square<<<(n + block - 1) / block, block>>>(d, n);
    cudaMemcpy(h.data(), d, n * sizeof(int), cudaMemcpyDeviceToHost);
    for (int i = 0; i < n; i++) if (h[i] != i * i) return printf("wrong\n"), 1;
    square<<<1, 32, 100 * 1024>>>(d, n);
    if (cudaGetLastError() != cudaErrorInvalidValue) return printf("100 KB without opting in\n"), 1;
    cudaFuncSetAttribute(square, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 * 1024);
    square<<<1, 32, 100 * 1024>>>(d, n);
    if (cudaDeviceSynchronize() != cudaSuccess) return printf("100 KB\n"), 1;
    printf("OK %s\n", prop.name);
}
