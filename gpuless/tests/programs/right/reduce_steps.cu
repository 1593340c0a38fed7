// Seven reductions, as Harris's talk has them, for a warp whose lanes may diverge.
#include <assert.h>
#include <cuda_runtime.h>
#include <iostream>

template <class T> struct SharedMemory
{
    __device__ inline operator T*() { extern __shared__ int __smem[]; return (T*)__smem; }
    __device__ inline operator const T*() const { extern __shared__ int __smem[]; return (T*)__smem; }
};
template <class T> __global__ void reduce0(T* in, T* out, unsigned n)
{
    T* s = SharedMemory<T>();
    unsigned tid = threadIdx.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    s[tid] = i < n ? in[i] : 0;
    __syncthreads();
    for (unsigned k = 1; k < blockDim.x; k *= 2) {
        if (tid % (2 * k) == 0) s[tid] += s[tid + k];
        __syncthreads();
    }
    if (tid == 0) out[blockIdx.x] = s[0];
}
template <class T> __global__ void reduce1(T* in, T* out, unsigned n)
{
    T* s = SharedMemory<T>();
    unsigned tid = threadIdx.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    s[tid] = i < n ? in[i] : 0;
    __syncthreads();
    for (unsigned k = 1; k < blockDim.x; k *= 2) {
        unsigned index = 2 * k * tid;
        if (index < blockDim.x) s[index] += s[index + k];
        __syncthreads();
    }
    if (tid == 0) out[blockIdx.x] = s[0];
}
template <class T> __global__ void reduce3(T* in, T* out, unsigned n)
{
    T* s = SharedMemory<T>();
    unsigned tid = threadIdx.x, i = blockIdx.x * (blockDim.x * 2) + threadIdx.x;
    T sum = i < n ? in[i] : 0;
    if (i + blockDim.x < n) sum += in[i + blockDim.x];
    s[tid] = sum;
    __syncthreads();
    for (unsigned k = blockDim.x / 2; k > 0; k >>= 1) {
        if (tid < k) s[tid] = sum = sum + s[tid + k];
        __syncthreads();
    }
    if (tid == 0) out[blockIdx.x] = sum;
}
template <unsigned blockSize> __device__ void warpReduce(volatile int* s, unsigned tid)
{
    int x = s[tid];
    if (blockSize >= 64) { x += s[tid + 32]; __syncwarp(); s[tid] = x; __syncwarp(); }
    if (blockSize >= 32) { x += s[tid + 16]; __syncwarp(); s[tid] = x; __syncwarp(); }
    if (blockSize >= 16) { x += s[tid + 8]; __syncwarp(); s[tid] = x; __syncwarp(); }
    if (blockSize >= 8) { x += s[tid + 4]; __syncwarp(); s[tid] = x; __syncwarp(); }
    if (blockSize >= 4) { x += s[tid + 2]; __syncwarp(); s[tid] = x; __syncwarp(); }
    if (blockSize >= 2) { x += s[tid + 1]; __syncwarp(); s[tid] = x; __syncwarp(); }
}
template <class T, unsigned blockSize> __global__ void reduce6(T* in, T* out, unsigned n)
{
    T* s = SharedMemory<T>();
    unsigned tid = threadIdx.x, i = blockIdx.x * blockSize * 2 + threadIdx.x, gridSize = blockSize * 2 * gridDim.x;
    s[tid] = 0;
    while (i < n) {
        s[tid] += in[i] + (i + blockSize < n ? in[i + blockSize] : 0);
        i += gridSize;
    }
    __syncthreads();
    if (blockSize >= 256) { if (tid < 128) s[tid] += s[tid + 128]; __syncthreads(); }
    if (blockSize >= 128) { if (tid < 64) s[tid] += s[tid + 64]; __syncthreads(); }
    if (tid < 32) warpReduce<blockSize>(s, tid);
    if (tid == 0) out[blockIdx.x] = s[0];
}
void reduce(int which, int threads, int blocks, int* in, int* out, unsigned n)
{
    int smem = (threads <= 32 ? 2 * threads : threads) * sizeof(int);
    switch (which) {
        case 0: reduce0<int><<<blocks, threads, smem>>>(in, out, n); break;
        case 1: reduce1<int><<<blocks, threads, smem>>>(in, out, n); break;
        case 3: reduce3<int><<<blocks, threads, smem>>>(in, out, n); break;
        case 6:
            switch (threads) {
                case 256: reduce6<int, 256><<<blocks, threads, smem>>>(in, out, n); break;
                case 128: reduce6<int, 128><<<blocks, threads, smem>>>(in, out, n); break;
                case 64: reduce6<int, 64><<<blocks, threads, smem>>>(in, out, n); break;
            }
    }
}
int main()
{
    const unsigned n = 3000;
    int *h = new int[n], *in, *out, sum = 0;
    for (unsigned i = 0; i < n; i++) sum += h[i] = i % 17 - 3;
    cudaMalloc(&in, n * sizeof(int)), cudaMalloc(&out, n * sizeof(int));
    cudaMemcpy(in, h, n * sizeof(int), cudaMemcpyHostToDevice);
    for (int which : {0, 1, 3, 6})
        for (int threads : {64, 128, 256}) {
            int blocks = which < 3 ? (n + threads - 1) / threads : (n + 2 * threads - 1) / (2 * threads);
            if (which == 6) blocks = std::min(blocks, 4);
            reduce(which, threads, blocks, in, out, n);
            int got = 0, parts[64];
            assert(blocks <= 64);
            assert(cudaMemcpy(parts, out, blocks * sizeof(int), cudaMemcpyDeviceToHost) == cudaSuccess);
            for (int i = 0; i < blocks; i++) got += parts[i];
            if (got != sum) { std::cerr << "reduce" << which << " of " << threads << ": " << got << " instead of " << sum << std::endl; return 1; }
        }
    std::cout << "OK" << std::endl;
    delete[] h;
    cudaFree(in), cudaFree(out);
}
