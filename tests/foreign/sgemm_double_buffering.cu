// The next tile is copied asynchronously while the present one is used.
#include <cstdio>
#include <cooperative_groups.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))

template <const int BM, const int BN, const int BK>
__global__ void sgemmDoubleBuffering(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C) {
    __shared__ float As[2][BM][BK + 1];
    __shared__ float Bs[2][BK][BN];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    auto load = [&](int stage, int k0) {
        for (int i = threadIdx.x; i < BM * BK; i += 256) {
            const int r = i / BK, k = i % BK, row = blockIdx.y * BM + r;
            if (row < M && k0 + k < K) {
                __pipeline_memcpy_async(&As[stage][r][k], A + (size_t)row * K + k0 + k, sizeof(float));
            } else {
                As[stage][r][k] = 0.0f;
            }
        }
        for (int i = threadIdx.x; i < BN * BK; i += 256) {
            const int c = i % BN, k = i / BN, col = blockIdx.x * BN + c;
            if (col < N && k0 + k < K) {
                __pipeline_memcpy_async(&Bs[stage][k][c], B + (size_t)(k0 + k) * N + col, sizeof(float));
            } else {
                Bs[stage][k][c] = 0.0f;
            }
        }
        __pipeline_commit();
    };
    float acc[BM / 16][BN / 16] = {};
    load(0, 0);
    int stage = 0;
    for (int k0 = 0; k0 < K; k0 += BK) {
        if (k0 + BK < K) {
            load(stage ^ 1, k0 + BK);
            __pipeline_wait_prior(1);
        } else {
            __pipeline_wait_prior(0);
        }
        __syncthreads();
        for (int k = 0; k < BK; ++k)
            for (int i = 0; i < BM / 16; ++i)
                for (int j = 0; j < BN / 16; ++j) acc[i][j] += As[stage][ty + 16 * i][k] * Bs[stage][k][tx + 16 * j];
        __syncthreads();
        stage ^= 1;
    }
    for (int i = 0; i < BM / 16; ++i)
        for (int j = 0; j < BN / 16; ++j) {
            const int row = blockIdx.y * BM + ty + 16 * i, col = blockIdx.x * BN + tx + 16 * j;
            if (row < M && col < N) C[(size_t)row * N + col] = alpha * acc[i][j] + beta * C[(size_t)row * N + col];
        }
}

void runSgemmDoubleBuffering(int M, int N, int K, float alpha, float* A, float* B, float beta, float* C) {
    dim3 gridDim(CEIL_DIV(N, 64), CEIL_DIV(M, 64));
    dim3 blockDim(256);
    sgemmDoubleBuffering<64, 64, 16><<<gridDim, blockDim>>>(M, N, K, alpha, A, B, beta, C);
}
