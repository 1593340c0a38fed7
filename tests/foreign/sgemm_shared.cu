// Tiles of both matrices in shared memory; the tile's size is a template parameter.
#include <cassert>
#include <cstdio>
#include <cuda_runtime.h>
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))

template <const int BLOCKSIZE>
__global__ void sgemm_shared_mem_block(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C) {
    const uint cRow = blockIdx.x;
    const uint cCol = blockIdx.y;
    __shared__ float As[BLOCKSIZE * BLOCKSIZE];
    __shared__ float Bs[BLOCKSIZE * (BLOCKSIZE + 1)];
    const uint threadCol = threadIdx.x % BLOCKSIZE;
    const uint threadRow = threadIdx.x / BLOCKSIZE;
    const uint row = cRow * BLOCKSIZE + threadRow;
    const uint col = cCol * BLOCKSIZE + threadCol;
    float tmp = 0.0;
    for (int bkIdx = 0; bkIdx < K; bkIdx += BLOCKSIZE) {
        As[threadRow * BLOCKSIZE + threadCol] = row < M && bkIdx + threadCol < K ? A[row * K + bkIdx + threadCol] : 0.0f;
        const uint other = cCol * BLOCKSIZE + threadRow;
        Bs[threadCol * (BLOCKSIZE + 1) + threadRow] = other < N && bkIdx + threadCol < K ? B[other * K + bkIdx + threadCol] : 0.0f;
        __syncthreads();
        for (int dotIdx = 0; dotIdx < BLOCKSIZE; ++dotIdx) {
            tmp += As[threadRow * BLOCKSIZE + dotIdx] * Bs[dotIdx * (BLOCKSIZE + 1) + threadCol];
        }
        __syncthreads();
    }
    if (row < M && col < N) {
        C[row * N + col] = alpha * tmp + (beta == 0.0f ? 0.0f : beta * C[row * N + col]);
    }
}

void run_sgemm_shared_mem_block(int M, int N, int K, float alpha, float* A, float* B, float beta, float* C) {
    dim3 gridDim(CEIL_DIV(M, 32), CEIL_DIV(N, 32));
    dim3 blockDim(32 * 32);
    sgemm_shared_mem_block<32><<<gridDim, blockDim>>>(M, N, K, alpha, A, B, beta, C);
}
