// cuBLAS: the GEMM family and some of level 1 and 2, computed on the CPU in the stream's order. Other functions are not declared, so
// that a program that calls them is refused by name.
#pragma once
#define CUBLAS_API_H_
#include "rung_host/program.h"

#include <functional>

typedef struct RungBlas { cudaStream_t stream; int pointer_mode, math_mode; }* cublasHandle_t;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_NOT_INITIALIZED, CUBLAS_STATUS_ALLOC_FAILED = 3, CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH, CUBLAS_STATUS_MAPPING_ERROR = 11, CUBLAS_STATUS_EXECUTION_FAILED = 13, CUBLAS_STATUS_INTERNAL_ERROR,
    CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_LICENSE_ERROR };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C };
enum cublasFillMode_t { CUBLAS_FILL_MODE_LOWER, CUBLAS_FILL_MODE_UPPER, CUBLAS_FILL_MODE_FULL };
enum cublasDiagType_t { CUBLAS_DIAG_NON_UNIT, CUBLAS_DIAG_UNIT };
enum cublasSideMode_t { CUBLAS_SIDE_LEFT, CUBLAS_SIDE_RIGHT };
enum cublasPointerMode_t { CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE };
enum cublasMath_t { CUBLAS_DEFAULT_MATH, CUBLAS_TENSOR_OP_MATH, CUBLAS_PEDANTIC_MATH, CUBLAS_TF32_TENSOR_OP_MATH };
enum cublasComputeType_t { CUBLAS_COMPUTE_16F = 64, CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_16F = 74, CUBLAS_COMPUTE_32F_FAST_16BF,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77, CUBLAS_COMPUTE_64F = 70 };
namespace rung_host {
struct Compute {  // CUDA 10's calls name a number format
    cublasComputeType_t of;
    Compute(cublasComputeType_t given) : of(given) {}
    Compute(cudaDataType given) : of(given == CUDA_R_64F ? CUBLAS_COMPUTE_64F : given == CUDA_R_16F ? CUBLAS_COMPUTE_16F : CUBLAS_COMPUTE_32F) {}
    operator cublasComputeType_t() const { return of; }
};
}  // namespace rung_host
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99 };

inline cublasStatus_t cublasCreate(cublasHandle_t* handle) { return *handle = new RungBlas{}, CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasDestroy(cublasHandle_t handle) { return delete handle, CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) { return handle->stream = stream, CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream) { return *stream = handle->stream, CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) { return handle->math_mode = mode, CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode) { return handle->pointer_mode = mode, CUBLAS_STATUS_SUCCESS; }
inline const char* cublasGetStatusString(cublasStatus_t status) { return status ? "an error of cuBLAS" : "success"; }
inline const char* cublasGetStatusName(cublasStatus_t status) { return status ? "CUBLAS_STATUS_ERROR" : "CUBLAS_STATUS_SUCCESS"; }

namespace rung_host {

inline cublasStatus_t later(cudaStream_t stream, std::function<void()> work)
{
    const auto run = [](void* held) {
        std::function<void()>* const work = static_cast<std::function<void()>*>(held);
        (*work)();  // a captured one runs again
    };
    return cudaLaunchHostFunc(stream, run, new std::function<void()>(std::move(work))) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

// A scalar is read at the call, or, with pointer mode "device", when the work runs.
template <class S> inline std::function<S()> scalar(cublasHandle_t handle, const S* at)
{
    if (handle->pointer_mode) return [at] { return *at; };
    return [value = *at] { return value; };
}

inline double number(const void* at, size_t i, cudaDataType type)
{
    switch (type) {
        case CUDA_R_32F: return static_cast<const float*>(at)[i];
        case CUDA_R_64F: return static_cast<const double*>(at)[i];
        case CUDA_R_16F: return float(static_cast<const __half*>(at)[i]);
        case CUDA_R_16BF: return float(static_cast<const __nv_bfloat16*>(at)[i]);
        case CUDA_R_8I: return static_cast<const signed char*>(at)[i];
        case CUDA_R_32I: return static_cast<const int*>(at)[i];
    }
    return 0;
}

inline void put(void* at, size_t i, cudaDataType type, double value)
{
    switch (type) {
        case CUDA_R_32F: static_cast<float*>(at)[i] = float(value); break;
        case CUDA_R_64F: static_cast<double*>(at)[i] = value; break;
        case CUDA_R_16F: static_cast<__half*>(at)[i] = __half(float(value)); break;
        case CUDA_R_16BF: static_cast<__nv_bfloat16*>(at)[i] = __nv_bfloat16(float(value)); break;
        case CUDA_R_8I: static_cast<signed char*>(at)[i] = (signed char)value; break;
        case CUDA_R_32I: static_cast<int*>(at)[i] = int(value); break;
    }
}

// C = alpha op(A) op(B) + beta C, by columns; sums in double.
inline void gemm(bool ta, bool tb, int m, int n, int k, double alpha, const void* A, cudaDataType at, int lda, const void* B, cudaDataType bt, int ldb,
                 double beta, void* C, cudaDataType ct, int ldc)
{
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            double sum = 0;
            for (int p = 0; p < k; p++)
                sum += number(A, ta ? size_t(i) * lda + p : size_t(p) * lda + i, at) * number(B, tb ? size_t(p) * ldb + j : size_t(j) * ldb + p, bt);
            const size_t to = size_t(j) * ldc + i;
            put(C, to, ct, alpha * sum + (beta ? beta * number(C, to, ct) : 0));
        }
}

inline size_t bytes_of(cudaDataType type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : type == CUDA_R_8I ? 1 : 4; }

inline cublasStatus_t gemms(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, std::function<double()> alpha,
                            const void* A, cudaDataType at, int lda, long long sa, const void* B, cudaDataType bt, int ldb, long long sb,
                            std::function<double()> beta, void* C, cudaDataType ct, int ldc, long long sc, int batch)
{
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || k < 0 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m) return CUBLAS_STATUS_INVALID_VALUE;
    return later(handle->stream, [=] {
        for (int b = 0; b < batch; b++)
            gemm(ta, tb, m, n, k, alpha(), static_cast<const char*>(A) + b * sa * (long long)bytes_of(at), at, lda,
                 static_cast<const char*>(B) + b * sb * (long long)bytes_of(bt), bt, ldb, beta(), static_cast<char*>(C) + b * sc * (long long)bytes_of(ct), ct, ldc);
    });
}

// Arrays of pointers, which lie in the device's memory.
inline cublasStatus_t gemms_of(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, std::function<double()> alpha,
                               const void* const* A, cudaDataType at, int lda, const void* const* B, cudaDataType bt, int ldb, std::function<double()> beta,
                               void* const* C, cudaDataType ct, int ldc, int batch)
{
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || k < 0 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m) return CUBLAS_STATUS_INVALID_VALUE;
    return later(handle->stream, [=] {
        for (int b = 0; b < batch; b++) gemm(ta, tb, m, n, k, alpha(), A[b], at, lda, B[b], bt, ldb, beta(), C[b], ct, ldc);
    });
}

inline std::function<double()> scalar_of(cublasHandle_t handle, const void* at, cublasComputeType_t compute)
{
    if (compute == CUBLAS_COMPUTE_64F) return scalar(handle, static_cast<const double*>(at));
    if (compute == CUBLAS_COMPUTE_16F) return [read = scalar(handle, static_cast<const __half*>(at))] { return double(float(read())); };
    return [read = scalar(handle, static_cast<const float*>(at))] { return double(read()); };
}

}  // namespace rung_host

#define RUNG_BLAS(LETTER, T, TYPE, COMPUTE) \
    inline cublasStatus_t cublas##LETTER##gemm(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha, \
                                               const T* A, int lda, const T* B, int ldb, const T* beta, T* C, int ldc) \
    { \
        return rung_host::gemms(handle, ta, tb, m, n, k, rung_host::scalar_of(handle, alpha, COMPUTE), A, TYPE, lda, 0, B, TYPE, ldb, 0, \
                                rung_host::scalar_of(handle, beta, COMPUTE), C, TYPE, ldc, 0, 1); \
    } \
    inline cublasStatus_t cublas##LETTER##gemmBatched(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, \
                                                      const T* alpha, const T* const A[], int lda, const T* const B[], int ldb, const T* beta, \
                                                      T* const C[], int ldc, int batch) \
    { \
        return rung_host::gemms_of(handle, ta, tb, m, n, k, rung_host::scalar_of(handle, alpha, COMPUTE), (const void* const*)A, TYPE, lda, \
                                   (const void* const*)B, TYPE, ldb, rung_host::scalar_of(handle, beta, COMPUTE), (void* const*)C, TYPE, ldc, batch); \
    } \
    inline cublasStatus_t cublas##LETTER##gemmStridedBatched(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, \
                                                             const T* alpha, const T* A, int lda, long long sa, const T* B, int ldb, long long sb, \
                                                             const T* beta, T* C, int ldc, long long sc, int batch) \
    { \
        return rung_host::gemms(handle, ta, tb, m, n, k, rung_host::scalar_of(handle, alpha, COMPUTE), A, TYPE, lda, sa, B, TYPE, ldb, sb, \
                                rung_host::scalar_of(handle, beta, COMPUTE), C, TYPE, ldc, sc, batch); \
    }
RUNG_BLAS(S, float, CUDA_R_32F, CUBLAS_COMPUTE_32F)
RUNG_BLAS(D, double, CUDA_R_64F, CUBLAS_COMPUTE_64F)
RUNG_BLAS(H, __half, CUDA_R_16F, CUBLAS_COMPUTE_16F)

inline cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha, const void* A,
                                   cudaDataType at, int lda, const void* B, cudaDataType bt, int ldb, const void* beta, void* C, cudaDataType ct, int ldc,
                                   rung_host::Compute compute, cublasGemmAlgo_t)
{
    return rung_host::gemms(handle, ta, tb, m, n, k, rung_host::scalar_of(handle, alpha, compute), A, at, lda, 0, B, bt, ldb, 0,
                            rung_host::scalar_of(handle, beta, compute), C, ct, ldc, 0, 1);
}
inline cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha,
                                                 const void* A, cudaDataType at, int lda, long long sa, const void* B, cudaDataType bt, int ldb, long long sb,
                                                 const void* beta, void* C, cudaDataType ct, int ldc, long long sc, int batch, rung_host::Compute compute,
                                                 cublasGemmAlgo_t)
{
    return rung_host::gemms(handle, ta, tb, m, n, k, rung_host::scalar_of(handle, alpha, compute), A, at, lda, sa, B, bt, ldb, sb,
                            rung_host::scalar_of(handle, beta, compute), C, ct, ldc, sc, batch);
}
inline cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha,
                                          const void* const A[], cudaDataType at, int lda, const void* const B[], cudaDataType bt, int ldb,
                                          const void* beta, void* const C[], cudaDataType ct, int ldc, int batch, rung_host::Compute compute,
                                          cublasGemmAlgo_t)
{
    return rung_host::gemms_of(handle, ta, tb, m, n, k, rung_host::scalar_of(handle, alpha, compute), A, at, lda, B, bt, ldb,
                               rung_host::scalar_of(handle, beta, compute), C, ct, ldc, batch);
}
namespace rung_host {
// A function with a result: the host waits for it unless the result lies on the device.
template <class R, class F> inline cublasStatus_t reduced(cublasHandle_t handle, R* result, F compute)
{
    const cublasStatus_t status = later(handle->stream, [=] { *result = R(compute()); });
    if (!handle->pointer_mode) cudaStreamSynchronize(handle->stream);
    return status;
}
template <class T, class Better> inline int extreme(int n, const T* x, int incx, Better better)  // counted from 1
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (better(x[i * incx] < 0 ? -x[i * incx] : x[i * incx], x[best * incx] < 0 ? -x[best * incx] : x[best * incx])) best = i;
    return n > 0 ? best + 1 : 0;
}
template <class T>
inline cublasStatus_t gemv(cublasHandle_t handle, cublasOperation_t ta, int m, int n, const T* alpha, const T* A, int lda, const T* x, int incx, const T* beta,
                           T* y, int incy)
{
    if (incx < 1 || incy < 1 || lda < m) return CUBLAS_STATUS_INVALID_VALUE;
    return later(handle->stream, [=, a = scalar(handle, alpha), b = scalar(handle, beta)] {
        for (int i = 0; i < (ta ? n : m); i++) {
            double sum = 0;
            for (int p = 0; p < (ta ? m : n); p++) sum += double(A[ta ? size_t(i) * lda + p : size_t(p) * lda + i]) * x[p * incx];
            y[i * incy] = T(a() * sum + (b() ? b() * y[i * incy] : 0));
        }
    });
}
}  // namespace rung_host
#define RUNG_VECTORS(L, l, T) \
    inline cublasStatus_t cublas##L##gemv(cublasHandle_t handle, cublasOperation_t ta, int m, int n, const T* alpha, const T* A, int lda, const T* x, \
                                          int incx, const T* beta, T* y, int incy) \
    { return rung_host::gemv(handle, ta, m, n, alpha, A, lda, x, incx, beta, y, incy); } \
    inline cublasStatus_t cublas##L##geam(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, const T* alpha, const T* A, \
                                          int lda, const T* beta, const T* B, int ldb, T* C, int ldc) \
    { \
        return rung_host::later(handle->stream, [=, a = rung_host::scalar(handle, alpha), b = rung_host::scalar(handle, beta)] { \
            const T x = a(), y = b(); \
            for (int j = 0; j < n; j++) \
                for (int i = 0; i < m; i++) \
                    C[size_t(j) * ldc + i] = (x ? x * A[ta ? size_t(i) * lda + j : size_t(j) * lda + i] : 0) + (y ? y * B[tb ? size_t(i) * ldb + j : size_t(j) * ldb + i] : 0); \
        }); \
    } \
    inline cublasStatus_t cublas##L##ger(cublasHandle_t handle, int m, int n, const T* alpha, const T* x, int incx, const T* y, int incy, T* A, int lda) \
    { \
        return rung_host::later(handle->stream, [=, a = rung_host::scalar(handle, alpha)] { \
            for (int j = 0; j < n; j++) for (int i = 0; i < m; i++) A[size_t(j) * lda + i] += a() * x[i * incx] * y[j * incy]; }); \
    } \
    inline cublasStatus_t cublas##L##axpy(cublasHandle_t handle, int n, const T* alpha, const T* x, int incx, T* y, int incy) \
    { return rung_host::later(handle->stream, [=, a = rung_host::scalar(handle, alpha)] { for (int i = 0; i < n; i++) y[i * incy] += a() * x[i * incx]; }); } \
    inline cublasStatus_t cublas##L##scal(cublasHandle_t handle, int n, const T* alpha, T* x, int incx) \
    { return rung_host::later(handle->stream, [=, a = rung_host::scalar(handle, alpha)] { for (int i = 0; i < n; i++) x[i * incx] *= a(); }); } \
    inline cublasStatus_t cublas##L##copy(cublasHandle_t handle, int n, const T* x, int incx, T* y, int incy) \
    { return rung_host::later(handle->stream, [=] { for (int i = 0; i < n; i++) y[i * incy] = x[i * incx]; }); } \
    inline cublasStatus_t cublas##L##swap(cublasHandle_t handle, int n, T* x, int incx, T* y, int incy) \
    { return rung_host::later(handle->stream, [=] { for (int i = 0; i < n; i++) { const T t = x[i * incx]; x[i * incx] = y[i * incy], y[i * incy] = t; } }); } \
    inline cublasStatus_t cublas##L##dot(cublasHandle_t handle, int n, const T* x, int incx, const T* y, int incy, T* result) \
    { return rung_host::reduced(handle, result, [=] { double sum = 0; for (int i = 0; i < n; i++) sum += double(x[i * incx]) * y[i * incy]; return sum; }); } \
    inline cublasStatus_t cublas##L##nrm2(cublasHandle_t handle, int n, const T* x, int incx, T* result) \
    { return rung_host::reduced(handle, result, [=] { double sum = 0; for (int i = 0; i < n; i++) sum += double(x[i * incx]) * x[i * incx]; return __builtin_sqrt(sum); }); } \
    inline cublasStatus_t cublas##L##asum(cublasHandle_t handle, int n, const T* x, int incx, T* result) \
    { return rung_host::reduced(handle, result, [=] { double sum = 0; for (int i = 0; i < n; i++) sum += __builtin_fabs(double(x[i * incx])); return sum; }); } \
    inline cublasStatus_t cublasI##l##amax(cublasHandle_t handle, int n, const T* x, int incx, int* result) \
    { return rung_host::reduced(handle, result, [=] { return rung_host::extreme(n, x, incx, [](T a, T b) { return a > b; }); }); } \
    inline cublasStatus_t cublasI##l##amin(cublasHandle_t handle, int n, const T* x, int incx, int* result) \
    { return rung_host::reduced(handle, result, [=] { return rung_host::extreme(n, x, incx, [](T a, T b) { return a < b; }); }); }
RUNG_VECTORS(S, s, float)
RUNG_VECTORS(D, d, double)
#undef RUNG_VECTORS
inline cublasStatus_t rung_copied(cudaError_t error) { return error ? CUBLAS_STATUS_MAPPING_ERROR : CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetMatrix(int rows, int cols, int size, const void* A, int lda, void* B, int ldb, RungSite site = here())
{
    return rung_copied(cudaMemcpy2D(B, size_t(ldb) * size, A, size_t(lda) * size, size_t(rows) * size, cols, cudaMemcpyHostToDevice, site));
}
inline cublasStatus_t cublasGetMatrix(int rows, int cols, int size, const void* A, int lda, void* B, int ldb, RungSite site = here())
{
    return rung_copied(cudaMemcpy2D(B, size_t(ldb) * size, A, size_t(lda) * size, size_t(rows) * size, cols, cudaMemcpyDeviceToHost, site));
}
inline cublasStatus_t cublasSetVector(int n, int size, const void* x, int incx, void* y, int incy, RungSite site = here())
{
    return cublasSetMatrix(1, n, size, x, incx, y, incy, site);
}
inline cublasStatus_t cublasGetVector(int n, int size, const void* x, int incx, void* y, int incy, RungSite site = here())
{
    return cublasGetMatrix(1, n, size, x, incx, y, incy, site);
}
