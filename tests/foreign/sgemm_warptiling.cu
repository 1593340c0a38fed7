// Warps have tiles of their own within the block's.
#include <algorithm>
#include <cassert>
#include <cuda_runtime.h>
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))
const int WARPSIZE = 32;

namespace wt {
template <const int BM, const int BN, const int BK, const int THREADS>
__device__ void loadFromGmem(int M, int N, int K, int k0, const float* A, const float* B, float* As, float* Bs) {
    for (int i = threadIdx.x; i < BM * BK; i += THREADS) {
        const int r = i / BK, k = i % BK, row = blockIdx.y * BM + r;
        As[k * BM + r] = row < M && k0 + k < K ? A[row * K + k0 + k] : 0.0f;
    }
    for (int i = threadIdx.x; i < BN * BK; i += THREADS) {
        const int c = i % BN, k = i / BN, col = blockIdx.x * BN + c;
        Bs[k * BN + c] = col < N && k0 + k < K ? B[(k0 + k) * N + col] : 0.0f;
    }
}
}  // namespace wt

template <const int BM, const int BN, const int BK, const int WM, const int WN, const int WNITER, const int TM, const int TN, const int NUM_THREADS>
__global__ void __launch_bounds__(NUM_THREADS)
    sgemmWarptiling(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C) {
    const uint warpIdx = threadIdx.x / WARPSIZE;
    const uint warpCol = warpIdx % (BN / WN);
    const uint warpRow = warpIdx / (BN / WN);
    constexpr uint WMITER = (WM * WN) / (WARPSIZE * TM * TN * WNITER);
    constexpr uint WSUBM = WM / WMITER;
    constexpr uint WSUBN = WN / WNITER;
    const uint threadIdxInWarp = threadIdx.x % WARPSIZE;
    const uint threadColInWarp = threadIdxInWarp % (WSUBN / TN);
    const uint threadRowInWarp = threadIdxInWarp / (WSUBN / TN);
    __shared__ float As[BM * BK];
    __shared__ float Bs[BK * BN];
    float threadResults[WMITER * TM * WNITER * TN] = {0.0};
    float regM[WMITER * TM] = {0.0};
    float regN[WNITER * TN] = {0.0};
    for (uint bkIdx = 0; bkIdx < K; bkIdx += BK) {
        wt::loadFromGmem<BM, BN, BK, NUM_THREADS>(M, N, K, bkIdx, A, B, As, Bs);
        __syncthreads();
        for (uint dotIdx = 0; dotIdx < BK; ++dotIdx) {
            for (uint wSubRowIdx = 0; wSubRowIdx < WMITER; ++wSubRowIdx)
                for (uint i = 0; i < TM; ++i)
                    regM[wSubRowIdx * TM + i] = As[(dotIdx * BM) + warpRow * WM + wSubRowIdx * WSUBM + threadRowInWarp * TM + i];
            for (uint wSubColIdx = 0; wSubColIdx < WNITER; ++wSubColIdx)
                for (uint i = 0; i < TN; ++i)
                    regN[wSubColIdx * TN + i] = Bs[(dotIdx * BN) + warpCol * WN + wSubColIdx * WSUBN + threadColInWarp * TN + i];
            for (uint m = 0; m < WMITER * TM; ++m)
                for (uint n = 0; n < WNITER * TN; ++n) threadResults[m * (WNITER * TN) + n] += regM[m] * regN[n];
        }
        __syncthreads();
    }
    for (uint m = 0; m < WMITER * TM; ++m) {
        for (uint n = 0; n < WNITER * TN; ++n) {
            const uint row = blockIdx.y * BM + warpRow * WM + (m / TM) * WSUBM + threadRowInWarp * TM + m % TM;
            const uint col = blockIdx.x * BN + warpCol * WN + (n / TN) * WSUBN + threadColInWarp * TN + n % TN;
            if (row < M && col < N) C[row * N + col] = alpha * threadResults[m * (WNITER * TN) + n] + beta * C[row * N + col];
        }
    }
}

void runSgemmWarptiling(int M, int N, int K, float alpha, float* A, float* B, float beta, float* C) {
    const uint K10_NUM_THREADS = 128;
    const uint K10_BN = 64;
    const uint K10_BM = 64;
    const uint K10_BK = 16;
    const uint K10_WN = 32;
    const uint K10_WM = 32;
    const uint K10_WNITER = 2;
    const uint K10_TN = 4;
    const uint K10_TM = 4;
    dim3 blockDim(K10_NUM_THREADS);
    dim3 gridDim(CEIL_DIV(N, K10_BN), CEIL_DIV(M, K10_BM));
    sgemmWarptiling<K10_BM, K10_BN, K10_BK, K10_WM, K10_WN, K10_WNITER, K10_TM, K10_TN, K10_NUM_THREADS>
        <<<gridDim, blockDim>>>(M, N, K, alpha, A, B, beta, C);
}
