#include <cmath>
#include <cstdio>
#include <cublas_v2.h>
#include <vector>
// Steepest descent on a small symmetric system, all vectors by cuBLAS.
int main()
{
    const int n = 24;
    std::vector<double> A(n * n), b(n), x(n, 0.0);
    for (int i = 0; i < n; i++) b[i] = i % 5 - 2, A[i * n + i] = 4;
    for (int i = 0; i + 1 < n; i++) A[i * n + i + 1] = A[(i + 1) * n + i] = -1;
    double *dA, *dx, *dr, *dq, square, step, along, minus, one = 1, zero = 0, norm, sum;
    cudaMalloc(&dA, n * n * 8), cudaMalloc(&dx, n * 8), cudaMalloc(&dr, n * 8), cudaMalloc(&dq, n * 8);
    cublasHandle_t handle;
    cublasCreate(&handle);
    cublasSetMatrix(n, n, 8, A.data(), n, dA, n), cublasSetVector(n, 8, x.data(), 1, dx, 1), cublasSetVector(n, 8, b.data(), 1, dr, 1);
    int rounds = 0, first = 0;
    for (; rounds < 200; rounds++) {
        cublasDdot(handle, n, dr, 1, dr, 1, &square);
        if (square < 1e-20) break;
        cublasDgemv(handle, CUBLAS_OP_N, n, n, &one, dA, n, dr, 1, &zero, dq, 1);
        cublasDdot(handle, n, dr, 1, dq, 1, &along);
        step = square / along, minus = -step;
        cublasDaxpy(handle, n, &step, dr, 1, dx, 1), cublasDaxpy(handle, n, &minus, dq, 1, dr, 1);
    }
    cublasGetVector(n, 8, dx, 1, x.data(), 1);
    cublasDcopy(handle, n, dx, 1, dq, 1), cublasDnrm2(handle, n, dq, 1, &norm), cublasDasum(handle, n, dq, 1, &sum), cublasIdamax(handle, n, dq, 1, &first);
    double worst = 0, square2 = 0, sum2 = 0;
    int largest = 0;
    for (int i = 0; i < n; i++) {
        double row = -b[i];
        for (int j = 0; j < n; j++) row += A[i * n + j] * x[j];
        worst = std::max(worst, std::fabs(row)), square2 += x[i] * x[i], sum2 += std::fabs(x[i]);
        if (std::fabs(x[i]) > std::fabs(x[largest])) largest = i;
    }
    cublasDestroy(handle);
    cudaFree(dA), cudaFree(dx), cudaFree(dr), cudaFree(dq);
    bool good = worst < 1e-8 && std::fabs(norm - std::sqrt(square2)) < 1e-12 && std::fabs(sum - sum2) < 1e-12 && first == largest + 1;
    puts(good ? "OK" : "wrong");
    return !good;
}
