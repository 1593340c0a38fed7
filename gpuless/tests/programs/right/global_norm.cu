#include "common.h"
__global__ void norm_kernel(float* out, const float* data, size_t count)
{
    __shared__ float per_warp[32];
    float sum = 0.0f;
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) sum += data[i] * data[i];
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_down_sync(0xffffffff, sum, offset);
    if (threadIdx.x % 32 == 0) per_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? per_warp[threadIdx.x] : 0.0f;
        for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_down_sync(0xffffffff, sum, offset);
        if (threadIdx.x == 0) atomicAdd(out, sum);
    }
}
int main()
{
    const size_t n = 5000;
    cudaDeviceProp prop;
    cudaCheck(cudaGetDeviceProperties(&prop, 0));
    float *data, *out;
    cudaCheck(cudaMallocManaged(&data, n * sizeof(float)));
    cudaCheck(cudaMallocManaged(&out, sizeof(float)));
    double expected = 0;
    for (size_t i = 0; i < n; i++) data[i] = sinf(i), expected += (double)data[i] * data[i];
    *out = 0;
    int grid = prop.multiProcessorCount * prop.maxThreadsPerMultiProcessor / 512 < 8 ? 4 : 8;
    norm_kernel<<<grid, 256>>>(out, data, n);
    cudaCheck(cudaDeviceSynchronize());
    if (fabs(*out - expected) > 1e-3 * expected) { printf("%f instead of %f\n", *out, expected); return 1; }
    printf("OK\n");
    cudaFree(data), cudaFree(out);
}
