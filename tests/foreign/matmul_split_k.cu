/*---
idea = "Four blocks share a tile's depth, and add in turn."
[bind]
M = "B * T"
N = "OC"
K = "C"
A = "x"
W = "weight"
D = "out"
[buffers]
semaphore = { shape = ["ceil_div(B * T, 16) * ceil_div(OC, 16)"], dtype = "i32", zero = "once" }
[[launch]]
kernel = "splitk_gemm"
grid = ["ceil_div(OC, 16)", "ceil_div(B * T, 16)", 4]
block = [16, 16]
---*/
// Serial split-K: slices of the depth add to the result one after the other, by a semaphore per tile.
#include <cuda_runtime.h>

struct Semaphore {
    int* lock;
    bool wait_thread;
    int state;
    __device__ Semaphore(int* lock_, int thread_id) : lock(lock_), wait_thread(thread_id == 0), state(-1) {}
    __device__ void fetch() {
        if (wait_thread) asm volatile("ld.global.acquire.gpu.b32 %0, [%1];\n" : "=r"(state) : "l"(lock) : "memory");
    }
    __device__ void wait(int status) {
        while (__syncthreads_and(state != status)) fetch();
        __syncthreads();
    }
    __device__ void release(int status) {
        __syncthreads();
        if (wait_thread) asm volatile("st.global.release.gpu.b32 [%0], %1;\n" : : "l"(lock), "r"(status) : "memory");
    }
};

__global__ void splitk_gemm(const float* A, const float* W, const float* bias, float* D, int* semaphore, int M, int N, int K) {
    const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    const int slices = gridDim.z, depth = (K + slices - 1) / slices;
    const int first = blockIdx.z * depth, last = min(K, first + depth);
    float acc = 0.0f;
    if (row < M && col < N) {
        for (int k = first; k < last; ++k) acc += A[row * K + k] * W[col * K + k];
    }
    Semaphore turn(semaphore + blockIdx.y * gridDim.x + blockIdx.x, threadIdx.y * 16 + threadIdx.x);
    turn.fetch();
    turn.wait(blockIdx.z);
    if (row < M && col < N) {
        const float start = blockIdx.z ? D[row * N + col] : bias ? bias[col] : 0.0f;
        D[row * N + col] = start + acc;
    }
    turn.release(blockIdx.z + 1 == slices ? 0 : blockIdx.z + 1);
}
