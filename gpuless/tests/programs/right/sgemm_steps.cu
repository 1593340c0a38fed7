// SGEMM from the naive kernel to vector loads and a tile of results per thread, chosen by a number.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <stdexcept>
#include <vector>
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))
#define cudaCheck(err) \
    do { cudaError_t e_ = (err); if (e_ != cudaSuccess) { printf("[CUDA ERROR] %s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(EXIT_FAILURE); } } while (0)

__global__ void sgemm_naive(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C)
{
    const uint x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < M && y < N) {
        float tmp = 0.0;
        for (int i = 0; i < K; ++i) tmp += A[x * K + i] * B[i * N + y];
        C[x * N + y] = alpha * tmp + beta * C[x * N + y];
    }
}
template <const uint BLOCKSIZE> __global__ void sgemm_coalesced(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C)
{
    const int row = blockIdx.x * BLOCKSIZE + (threadIdx.x / BLOCKSIZE), col = blockIdx.y * BLOCKSIZE + (threadIdx.x % BLOCKSIZE);
    if (row < M && col < N) {
        float tmp = 0.0;
        for (int i = 0; i < K; ++i) tmp += A[row * K + i] * B[i * N + col];
        C[row * N + col] = alpha * tmp + beta * C[row * N + col];
    }
}
template <const int BLOCKSIZE> __global__ void sgemm_shared(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C)
{
    __shared__ float As[BLOCKSIZE * BLOCKSIZE];
    __shared__ float Bs[BLOCKSIZE * BLOCKSIZE];
    const uint cRow = blockIdx.x, cCol = blockIdx.y, col = threadIdx.x % BLOCKSIZE, row = threadIdx.x / BLOCKSIZE;
    A += cRow * BLOCKSIZE * K, B += cCol * BLOCKSIZE, C += cRow * BLOCKSIZE * N + cCol * BLOCKSIZE;
    float tmp = 0.0;
    for (int bk = 0; bk < K; bk += BLOCKSIZE) {
        As[row * BLOCKSIZE + col] = A[row * K + col];
        Bs[row * BLOCKSIZE + col] = B[row * N + col];
        __syncthreads();
        A += BLOCKSIZE, B += BLOCKSIZE * N;
        for (int dot = 0; dot < BLOCKSIZE; ++dot) tmp += As[row * BLOCKSIZE + dot] * Bs[dot * BLOCKSIZE + col];
        __syncthreads();
    }
    C[row * N + col] = alpha * tmp + beta * C[row * N + col];
}
template <const int BM, const int BN, const int BK, const int TM, const int TN>
__global__ void __launch_bounds__((BM * BN) / (TM * TN), 1) sgemm_vectorized(int M, int N, int K, float alpha, float* A, float* B, float beta, float* C)
{
    __shared__ float As[BM * BK];
    __shared__ float Bs[BK * BN];
    const int threadCol = threadIdx.x % (BN / TN), threadRow = threadIdx.x / (BN / TN);
    A += blockIdx.y * BM * K, B += blockIdx.x * BN, C += blockIdx.y * BM * N + blockIdx.x * BN;
    float results[TM * TN] = {0.0}, regM[TM] = {0.0}, regN[TN] = {0.0};
    const int threads = BM * BN / (TM * TN);
    for (int bk = 0; bk < K; bk += BK) {
        for (int at = threadIdx.x * 4; at < BM * BK; at += threads * 4) {
            float4 tmp = reinterpret_cast<float4*>(&A[at / BK * K + at % BK])[0];
            As[(at % BK + 0) * BM + at / BK] = tmp.x, As[(at % BK + 1) * BM + at / BK] = tmp.y;
            As[(at % BK + 2) * BM + at / BK] = tmp.z, As[(at % BK + 3) * BM + at / BK] = tmp.w;
        }
        for (int at = threadIdx.x * 4; at < BK * BN; at += threads * 4)
            reinterpret_cast<float4*>(&Bs[at])[0] = reinterpret_cast<float4*>(&B[at / BN * N + at % BN])[0];
        __syncthreads();
        A += BK, B += BK * N;
#pragma unroll
        for (int dot = 0; dot < BK; ++dot) {
            for (int i = 0; i < TM; ++i) regM[i] = As[dot * BM + threadRow * TM + i];
            for (int i = 0; i < TN; ++i) regN[i] = Bs[dot * BN + threadCol * TN + i];
            for (int m = 0; m < TM; ++m) for (int n = 0; n < TN; ++n) results[m * TN + n] += regM[m] * regN[n];
        }
        __syncthreads();
    }
    for (int m = 0; m < TM; m += 1) for (int n = 0; n < TN; n += 4) {
        float4 tmp = reinterpret_cast<float4*>(&C[(threadRow * TM + m) * N + threadCol * TN + n])[0];
        tmp.x = alpha * results[m * TN + n] + beta * tmp.x, tmp.y = alpha * results[m * TN + n + 1] + beta * tmp.y;
        tmp.z = alpha * results[m * TN + n + 2] + beta * tmp.z, tmp.w = alpha * results[m * TN + n + 3] + beta * tmp.w;
        reinterpret_cast<float4*>(&C[(threadRow * TM + m) * N + threadCol * TN + n])[0] = tmp;
    }
}

void run_kernel(int kernel, int M, int N, int K, float alpha, float* A, float* B, float beta, float* C)
{
    switch (kernel) {
        case 1: { dim3 grid(CEIL_DIV(M, 16), CEIL_DIV(N, 16)), block(16, 16); sgemm_naive<<<grid, block>>>(M, N, K, alpha, A, B, beta, C); break; }
        case 2: sgemm_coalesced<16><<<dim3(CEIL_DIV(M, 16), CEIL_DIV(N, 16)), dim3(16 * 16)>>>(M, N, K, alpha, A, B, beta, C); break;
        case 3: {
            cudaFuncSetAttribute(sgemm_shared<16>, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
            sgemm_shared<16><<<dim3(CEIL_DIV(M, 16), CEIL_DIV(N, 16)), dim3(16 * 16)>>>(M, N, K, alpha, A, B, beta, C);
            break;
        }
        case 4: {
            const uint BM = 32, BN = 32, BK = 8, TM = 4, TN = 4;
            sgemm_vectorized<BM, BN, BK, TM, TN><<<dim3(CEIL_DIV(N, BN), CEIL_DIV(M, BM)), dim3((BM * BN) / (TM * TN))>>>(M, N, K, alpha, A, B, beta, C);
            break;
        }
        default: throw std::invalid_argument("Unknown kernel number");
    }
}

int main(int argc, char** argv)
{
    const int M = 64, N = 96, K = 48;
    const float alpha = 0.5, beta = 3.0;
    std::vector<float> A(M * K), B(K * N), C(M * N), R(M * N);
    for (auto* v : {&A, &B, &C}) for (auto& x : *v) x = (rand() % 5) - 2;
    float *dA, *dB, *dC;
    cudaCheck(cudaMalloc((void**)&dA, sizeof(float) * M * K));
    cudaCheck(cudaMalloc((void**)&dB, sizeof(float) * K * N));
    cudaCheck(cudaMalloc((void**)&dC, sizeof(float) * M * N));
    cudaCheck(cudaMemcpy(dA, A.data(), sizeof(float) * M * K, cudaMemcpyHostToDevice));
    cudaCheck(cudaMemcpy(dB, B.data(), sizeof(float) * K * N, cudaMemcpyHostToDevice));
    for (int kernel = 1; kernel <= 4; kernel++) {
        if (argc > 1 && atoi(argv[1]) != kernel) continue;
        cudaCheck(cudaMemcpy(dC, C.data(), sizeof(float) * M * N, cudaMemcpyHostToDevice));
        run_kernel(kernel, M, N, K, alpha, dA, dB, beta, dC);
        cudaCheck(cudaDeviceSynchronize());
        cudaCheck(cudaGetLastError());
        cudaCheck(cudaMemcpy(R.data(), dC, sizeof(float) * M * N, cudaMemcpyDeviceToHost));
        for (int i = 0; i < M * N; i++) {
            float e = 0;
            for (int k = 0; k < K; k++) e += A[i / N * K + k] * B[k * N + i % N];
            e = alpha * e + beta * C[i];
            if (R[i] != e) { printf("kernel %d: %f instead of %f at (%d, %d)\n", kernel, R[i], e, i / N, i % N); return 1; }
        }
    }
    printf("OK\n");
    cudaFree(dA), cudaFree(dB), cudaFree(dC);
}
