// Sums of rows as in the classic series: the first addition during the load, the last warp without barriers.
#include <stdio.h>
#include <cuda_runtime.h>

template <unsigned int blockSize>
__device__ float warpReduce(float sum) {
    for (int offset = warpSize / 2; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
    return sum;
}

template <unsigned int blockSize>
__global__ void reduce7(const float* g_idata, float* g_odata, unsigned int n) {
    extern __shared__ float sdata[];
    unsigned int tid = threadIdx.x;
    const float* row = g_idata + (size_t)blockIdx.x * n;
    float mySum = 0;
    unsigned int i = tid;
    while (i < n) {
        mySum += row[i];
        if (i + blockSize < n) mySum += row[i + blockSize];
        i += blockSize * 2;
    }
    sdata[tid] = mySum;
    __syncthreads();
    if ((blockSize >= 256) && (tid < 128)) sdata[tid] = mySum = mySum + sdata[tid + 128];
    __syncthreads();
    if ((blockSize >= 128) && (tid < 64)) sdata[tid] = mySum = mySum + sdata[tid + 64];
    __syncthreads();
    if (tid < 32) {
        mySum += sdata[tid + 32];
        mySum = warpReduce<blockSize>(mySum);
    }
    if (tid == 0) g_odata[blockIdx.x] = mySum;
}

void reduce(int B, int N, int threads, float* d_idata, float* d_odata) {
    int smemSize = 256 * sizeof(float);
    reduce7<256><<<B, 256, smemSize>>>(d_idata, d_odata, N);
}
