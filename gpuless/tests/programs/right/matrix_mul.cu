#include <cassert>
#include <cstdio>
#define STRINGIFY(x) #x
template <int BLOCK_SIZE> __global__ void MatrixMulCUDA(float* C, float* A, float* B, int wA, int wB)
{
    int bx = blockIdx.x, by = blockIdx.y, tx = threadIdx.x, ty = threadIdx.y;
    int aBegin = wA * BLOCK_SIZE * by, aEnd = aBegin + wA - 1, aStep = BLOCK_SIZE, bBegin = BLOCK_SIZE * bx, bStep = BLOCK_SIZE * wB;
    float Csub = 0;
    for (int a = aBegin, b = bBegin; a <= aEnd; a += aStep, b += bStep) {
        __shared__ float As[BLOCK_SIZE][BLOCK_SIZE];
        __shared__ float Bs[BLOCK_SIZE][BLOCK_SIZE];
        As[ty][tx] = A[a + wA * ty + tx];
        Bs[ty][tx] = B[b + wB * ty + tx];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BLOCK_SIZE; ++k) Csub += As[ty][k] * Bs[k][tx];
        __syncthreads();
    }
    C[wB * BLOCK_SIZE * by + BLOCK_SIZE * bx + wB * ty + tx] = Csub;
}
void ConstantInit(float* data, int size, float val) { for (int i = 0; i < size; ++i) data[i] = val; }
int MatrixMultiply(int block_size, const dim3& dimsA, const dim3& dimsB)
{
    float *h_A, *h_B, *h_C, *d_A, *d_B, *d_C;
    unsigned a = dimsA.x * dimsA.y, b = dimsB.x * dimsB.y, c = dimsB.x * dimsA.y;
    cudaStream_t stream;
    cudaMallocHost(&h_A, 4 * a), cudaMallocHost(&h_B, 4 * b), cudaMallocHost(&h_C, 4 * c);
    cudaMalloc(reinterpret_cast<void**>(&d_A), 4 * a), cudaMalloc(reinterpret_cast<void**>(&d_B), 4 * b), cudaMalloc(reinterpret_cast<void**>(&d_C), 4 * c);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    ConstantInit(h_A, a, 1.0f), ConstantInit(h_B, b, 0.01f);
    cudaMemcpyAsync(d_A, h_A, 4 * a, cudaMemcpyHostToDevice, stream);
    cudaMemcpyAsync(d_B, h_B, 4 * b, cudaMemcpyHostToDevice, stream);
    dim3 threads(block_size, block_size), grid(dimsB.x / threads.x, dimsA.y / threads.y);
    for (int j = 0; j < 2; j++) {
        if (block_size == 16) MatrixMulCUDA<16><<<grid, threads, 0, stream>>>(d_C, d_A, d_B, dimsA.x, dimsB.x);
        else MatrixMulCUDA<8><<<grid, threads, 0, stream>>>(d_C, d_A, d_B, dimsA.x, dimsB.x);
    }
    cudaMemcpyAsync(h_C, d_C, 4 * c, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    bool correct = true;
    for (unsigned i = 0; i < c; i++) correct &= std::abs(h_C[i] - dimsA.x * 0.01f) < 1e-5f * dimsA.x;
    printf("%s\n", correct ? STRINGIFY(Result = PASS OK) : "Result = FAIL");
    cudaFreeHost(h_A), cudaFreeHost(h_B), cudaFreeHost(h_C), cudaFree(d_A), cudaFree(d_B), cudaFree(d_C), cudaStreamDestroy(stream);
    return correct ? EXIT_SUCCESS : EXIT_FAILURE;
}
int main() { return MatrixMultiply(16, dim3(64, 32, 1), dim3(48, 64, 1)) | MatrixMultiply(8, dim3(16, 16, 1), dim3(24, 16, 1)); }
