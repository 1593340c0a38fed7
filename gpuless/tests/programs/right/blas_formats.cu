#include <cmath>
#include <cstdio>
#include <cublas_v2.h>
#include <cuda_fp16.h>
// Functions of vectors in formats that their arguments name.
int main()
{
    const int n = 20;
    __half h[n], *x;
    float f[n], *y, dot = 0, norm = 0, two = 2, got[n];
    double expected = 0, square = 0;
    for (int i = 0; i < n; i++) {
        h[i] = __float2half(i % 7 - 3), f[i] = i % 5 - 1.5f;
        expected += double(i % 7 - 3) * f[i], square += double(f[i]) * f[i];
    }
    cudaMalloc(&x, sizeof h), cudaMalloc(&y, sizeof f);
    cublasHandle_t handle;
    cublasCreate(&handle);
    cublasSetVector(n, 2, h, 1, x, 1), cublasSetVector(n, 4, f, 1, y, 1);
    cublasDotEx(handle, n, x, CUDA_R_16F, 1, y, CUDA_R_32F, 1, &dot, CUDA_R_32F, CUDA_R_32F);
    cublasNrm2Ex(handle, n, y, CUDA_R_32F, 1, &norm, CUDA_R_32F, CUDA_R_32F);
    cublasAxpyEx(handle, n, &two, CUDA_R_32F, x, CUDA_R_16F, 1, y, CUDA_R_32F, 1, CUDA_R_32F);
    cublasScalEx(handle, n, &two, CUDA_R_32F, y, CUDA_R_32F, 1, CUDA_R_32F);
    const cublasStatus_t refused[] = {
        cublasDotcEx(handle, n / 2, y, CUDA_C_32F, 1, y, CUDA_C_32F, 1, got, CUDA_C_32F, CUDA_C_32F),
        cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &two, y, CUDA_C_32F, 1, y, CUDA_C_32F, 1, &two, y,
                     CUDA_C_32F, 1, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT)};
    cublasGetVector(n, 4, y, 1, got, 1);
    bool good = dot == float(expected) && std::fabs(norm - std::sqrt(square)) < 1e-5;
    for (int i = 0; i < n; i++) good &= got[i] == 2 * (f[i] + 2 * (i % 7 - 3));
    for (const cublasStatus_t status : refused) good &= status == CUBLAS_STATUS_NOT_SUPPORTED;
    cublasDestroy(handle);
    cudaFree(x), cudaFree(y);
    puts(good ? "OK" : "wrong");
    return !good;
}
