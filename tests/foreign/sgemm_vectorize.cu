/*---
idea = "Vector loads, a transposed tile."
needs = ["B * T % 64 == 0", "OC % 64 == 0", "C % 8 == 0"]
[bind]
M = "B * T"
N = "OC"
K = "C"
A = "x"
B = "weight"
C = "out"
alpha = 1.0
beta = 0.0
[[launch]]
kernel = "sgemmVectorize<64, 64, 8, 8, 8>"
grid = ["OC // 64", "B * T // 64"]
block = 64
---*/
// Loads of 16 bytes; A is transposed in shared memory. The sizes are multiples of the tiles.
#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

template <const int BM, const int BN, const int BK, const int TM, const int TN>
__global__ void sgemmVectorize(int M, int N, int K, float alpha, float* A, float* B, float beta, float* C) {
    const uint cRow = blockIdx.y;
    const uint cCol = blockIdx.x;
    const int threadCol = threadIdx.x % (BN / TN);
    const int threadRow = threadIdx.x / (BN / TN);
    __shared__ float As[BM * BK];
    __shared__ float Bs[BK * BN];
    A += cRow * BM * K;
    B += cCol * BN * K;
    C += cRow * BM * N + cCol * BN;
    const uint innerRow = threadIdx.x / (BK / 4);
    const uint innerCol = threadIdx.x % (BK / 4);
    const uint stride = blockDim.x * 4 / BK;
    float threadResults[TM * TN] = {0.0};
    float regM[TM] = {0.0};
    float regN[TN] = {0.0};
    for (uint bkIdx = 0; bkIdx < K; bkIdx += BK) {
        for (uint offset = 0; offset < BM; offset += stride) {
            float4 tmp = reinterpret_cast<float4*>(&A[(innerRow + offset) * K + innerCol * 4])[0];
            As[(innerCol * 4 + 0) * BM + innerRow + offset] = tmp.x;
            As[(innerCol * 4 + 1) * BM + innerRow + offset] = tmp.y;
            As[(innerCol * 4 + 2) * BM + innerRow + offset] = tmp.z;
            As[(innerCol * 4 + 3) * BM + innerRow + offset] = tmp.w;
            tmp = reinterpret_cast<float4*>(&B[(innerRow + offset) * K + innerCol * 4])[0];
            Bs[(innerCol * 4 + 0) * BN + innerRow + offset] = tmp.x;
            Bs[(innerCol * 4 + 1) * BN + innerRow + offset] = tmp.y;
            Bs[(innerCol * 4 + 2) * BN + innerRow + offset] = tmp.z;
            Bs[(innerCol * 4 + 3) * BN + innerRow + offset] = tmp.w;
        }
        __syncthreads();
        A += BK;
        B += BK;
        for (uint dotIdx = 0; dotIdx < BK; ++dotIdx) {
            for (uint i = 0; i < TM; ++i) regM[i] = As[dotIdx * BM + threadRow * TM + i];
            for (uint i = 0; i < TN; ++i) regN[i] = Bs[dotIdx * BN + threadCol * TN + i];
            for (uint m = 0; m < TM; ++m)
                for (uint n = 0; n < TN; ++n) threadResults[m * TN + n] += regM[m] * regN[n];
        }
        __syncthreads();
    }
    for (uint m = 0; m < TM; m += 1) {
        for (uint n = 0; n < TN; n += 4) {
            float4 tmp;
            tmp.x = alpha * threadResults[m * TN + n];
            tmp.y = alpha * threadResults[m * TN + n + 1];
            tmp.z = alpha * threadResults[m * TN + n + 2];
            tmp.w = alpha * threadResults[m * TN + n + 3];
            reinterpret_cast<float4*>(&C[(threadRow * TM + m) * N + threadCol * TN + n])[0] = tmp;
        }
    }
}
