// Tiles with extra columns.
#include <cuda_runtime.h>
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))
#define BM 64
#define BN 64
#define BK 8
#define TM 4
#define TN 4
#define EXTRA 5

__global__ void sgemmResolveBankExtraCol(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C) {
    __shared__ float As[BK * (BM + EXTRA)];
    __shared__ float Bs[BK * (BN + EXTRA)];
    const int threadCol = threadIdx.x % (BN / TN), threadRow = threadIdx.x / (BN / TN);
    float results[TM][TN] = {{0.0f}};
    for (int bk = 0; bk < K; bk += BK) {
        for (int i = threadIdx.x; i < BM * BK; i += blockDim.x) {
            int r = i / BK, k = i % BK, row = blockIdx.y * BM + r;
            As[k * (BM + EXTRA) + r] = (row < M && bk + k < K) ? A[row * K + bk + k] : 0.0f;
        }
        for (int i = threadIdx.x; i < BN * BK; i += blockDim.x) {
            int c = i % BN, k = i / BN, col = blockIdx.x * BN + c;
            Bs[k * (BN + EXTRA) + c] = (col < N && bk + k < K) ? B[(bk + k) * N + col] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK; ++k)
            for (int m = 0; m < TM; ++m)
                for (int n = 0; n < TN; ++n)
                    results[m][n] += As[k * (BM + EXTRA) + threadRow * TM + m] * Bs[k * (BN + EXTRA) + threadCol * TN + n];
        __syncthreads();
    }
    for (int m = 0; m < TM; ++m)
        for (int n = 0; n < TN; ++n) {
            int row = blockIdx.y * BM + threadRow * TM + m, col = blockIdx.x * BN + threadCol * TN + n;
            if (row < M && col < N) C[row * N + col] = alpha * results[m][n] + beta * C[row * N + col];
        }
}

void runSgemmResolveBankExtraCol(int M, int N, int K, float alpha, float* A, float* B, float beta, float* C) {
    dim3 gridDim(CEIL_DIV(N, BN), CEIL_DIV(M, BM));
    dim3 blockDim((BM * BN) / (TM * TN));
    sgemmResolveBankExtraCol<<<gridDim, blockDim>>>(M, N, K, alpha, A, B, beta, C);
}
