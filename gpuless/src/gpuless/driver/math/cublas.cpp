// cuBLAS: the handle, copies and the GEMM family, computed on the CPU in the stream's order.
#include "blas.h"

namespace blas {
namespace {

// C = alpha op(A) op(B) + beta C, by columns; sums in double.
void gemm(bool ta, bool tb, int m, int n, int k, double alpha, const void* A, cudaDataType at, int lda, const void* B,
          cudaDataType bt, int ldb, double beta, void* C, cudaDataType ct, int ldc)
{
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            double sum = 0;
            for (int p = 0; p < k; p++)
                sum += number(A, ta ? size_t(i) * lda + p : size_t(p) * lda + i, at) *
                       number(B, tb ? size_t(p) * ldb + j : size_t(j) * ldb + p, bt);
            const size_t to = size_t(j) * ldc + i;
            put(C, to, ct, alpha * sum + (beta ? beta * number(C, to, ct) : 0));
        }
}

cublasStatus_t gemms(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                     std::function<double()> alpha, const void* A, cudaDataType at, int lda, long long sa,
                     const void* B, cudaDataType bt, int ldb, long long sb, std::function<double()> beta, void* C,
                     cudaDataType ct, int ldc, long long sc, int batch)
{
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || k < 0 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!are_known({at, bt, ct})) return CUBLAS_STATUS_NOT_SUPPORTED;
    return later(handle->stream, [=] {
        for (int b = 0; b < batch; b++)
            gemm(ta, tb, m, n, k, alpha(), static_cast<const char*>(A) + b * sa * (long long)bytes_of(at), at, lda,
                 static_cast<const char*>(B) + b * sb * (long long)bytes_of(bt), bt, ldb, beta(),
                 static_cast<char*>(C) + b * sc * (long long)bytes_of(ct), ct, ldc);
    });
}

// Arrays of pointers, which lie in the device's memory.
cublasStatus_t gemms_of(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                        std::function<double()> alpha, const void* const* A, cudaDataType at, int lda,
                        const void* const* B, cudaDataType bt, int ldb, std::function<double()> beta, void* const* C,
                        cudaDataType ct, int ldc, int batch)
{
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || k < 0 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!are_known({at, bt, ct})) return CUBLAS_STATUS_NOT_SUPPORTED;
    return later(handle->stream, [=] {
        for (int b = 0; b < batch; b++)
            gemm(ta, tb, m, n, k, alpha(), A[b], at, lda, B[b], bt, ldb, beta(), C[b], ct, ldc);
    });
}

}  // namespace
}  // namespace blas

EXPORT cublasStatus_t cublasCreate(cublasHandle_t* handle)
{ return *handle = new cublasContext, CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasDestroy(cublasHandle_t handle) { return delete handle, CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasGetVersion(cublasHandle_t, int* version)
{ return *version = CUBLAS_VERSION, CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasSetWorkspace(cublasHandle_t, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasSetAtomicsMode(cublasHandle_t, cublasAtomicsMode_t) { return CUBLAS_STATUS_SUCCESS; }
#define PROPERTY(Name, type, field)                                                                                    \
    EXPORT cublasStatus_t cublasSet##Name(cublasHandle_t handle, type value)                                           \
    {                                                                                                                  \
        if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;                                                             \
        return handle->field = value, CUBLAS_STATUS_SUCCESS;                                                           \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublasGet##Name(cublasHandle_t handle, type* value)                                          \
    {                                                                                                                  \
        if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;                                                             \
        return *value = type(handle->field), CUBLAS_STATUS_SUCCESS;                                                    \
    }
PROPERTY(MathMode, cublasMath_t, math_mode)
#undef cublasSetStream
#undef cublasGetStream
#undef cublasSetPointerMode
#undef cublasGetPointerMode
PROPERTY(Stream_v2, cudaStream_t, stream)
PROPERTY(PointerMode_v2, cublasPointerMode_t, pointer_mode)

#define STATUS(X)                                                                                                      \
    X(CUBLAS_STATUS_SUCCESS, "success")                                                                                \
    X(CUBLAS_STATUS_NOT_INITIALIZED, "the library was not initialized")                                                \
    X(CUBLAS_STATUS_ALLOC_FAILED, "the resource allocation failed")                                                    \
    X(CUBLAS_STATUS_INVALID_VALUE, "an invalid value was given")                                                       \
    X(CUBLAS_STATUS_ARCH_MISMATCH, "the feature is absent from the device")                                            \
    X(CUBLAS_STATUS_MAPPING_ERROR, "an access to memory failed")                                                       \
    X(CUBLAS_STATUS_EXECUTION_FAILED, "the function failed to launch")                                                 \
    X(CUBLAS_STATUS_INTERNAL_ERROR, "an internal operation failed")                                                    \
    X(CUBLAS_STATUS_NOT_SUPPORTED, "the function is not supported")                                                    \
    X(CUBLAS_STATUS_LICENSE_ERROR, "no license")
EXPORT const char* cublasGetStatusName(cublasStatus_t status)
{
    switch (status) {
#define NAME(value, text)                                                                                              \
    case value: return #value;
        STATUS(NAME)
    }
    return "CUBLAS_STATUS_UNKNOWN";
}
EXPORT const char* cublasGetStatusString(cublasStatus_t status)
{
    switch (status) {
#define TEXT(value, text)                                                                                              \
    case value: return text;
        STATUS(TEXT)
    }
    return "unknown status";
}

// ---- copies between the host and the device

namespace {
cublasStatus_t copied(int rows, int cols, int size, const void* A, int lda, void* B, int ldb, bool to_device, bool wait,
                      cudaStream_t stream)
{
    if (rows < 0 || cols < 0 || size <= 0 || lda < rows || ldb < rows) return CUBLAS_STATUS_INVALID_VALUE;
    if (!rows || !cols) return CUBLAS_STATUS_SUCCESS;
    CUDA_MEMCPY2D what = {};
    what.srcMemoryType = to_device ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    what.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    what.srcHost = A, what.srcDevice = reinterpret_cast<CUdeviceptr>(A), what.srcPitch = size_t(lda) * size_t(size);
    what.dstHost = B, what.dstDevice = reinterpret_cast<CUdeviceptr>(B), what.dstPitch = size_t(ldb) * size_t(size);
    what.WidthInBytes = size_t(rows) * size_t(size), what.Height = size_t(cols);
    return (wait ? cuMemcpy2D(&what) : cuMemcpy2DAsync(&what, stream)) ? CUBLAS_STATUS_MAPPING_ERROR
                                                                       : CUBLAS_STATUS_SUCCESS;
}
}  // namespace

#define COPIES(Way, to_device)                                                                                         \
    EXPORT cublasStatus_t cublas##Way##Matrix(int rows, int cols, int size, const void* A, int lda, void* B, int ldb)  \
    { return copied(rows, cols, size, A, lda, B, ldb, to_device, true, nullptr); }                                     \
    EXPORT cublasStatus_t cublas##Way##MatrixAsync(int rows, int cols, int size, const void* A, int lda, void* B,      \
                                                   int ldb, cudaStream_t stream)                                       \
    { return copied(rows, cols, size, A, lda, B, ldb, to_device, false, stream); }                                     \
    EXPORT cublasStatus_t cublas##Way##Vector(int n, int size, const void* x, int incx, void* y, int incy)             \
    { return copied(1, n, size, x, incx, y, incy, to_device, true, nullptr); }                                         \
    EXPORT cublasStatus_t cublas##Way##VectorAsync(int n, int size, const void* x, int incx, void* y, int incy,        \
                                                   cudaStream_t stream)                                                \
    { return copied(1, n, size, x, incx, y, incy, to_device, false, stream); }
COPIES(Set, true)
COPIES(Get, false)

// ---- products

#define PRODUCTS(LETTER, T, TYPE, COMPUTE)                                                                             \
    EXPORT cublasStatus_t cublas##LETTER##gemm_v2(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,   \
                                                  int m, int n, int k, const T* alpha, const T* A, int lda,            \
                                                  const T* B, int ldb, const T* beta, T* C, int ldc)                   \
    {                                                                                                                  \
        return blas::gemms(handle, ta, tb, m, n, k, blas::scalar_of(handle, alpha, COMPUTE), A, TYPE, lda, 0, B, TYPE, \
                           ldb, 0, blas::scalar_of(handle, beta, COMPUTE), C, TYPE, ldc, 0, 1);                        \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublas##LETTER##gemmBatched(                                                                 \
        cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha,        \
        const T* const A[], int lda, const T* const B[], int ldb, const T* beta, T* const C[], int ldc, int batch)     \
    {                                                                                                                  \
        return blas::gemms_of(handle, ta, tb, m, n, k, blas::scalar_of(handle, alpha, COMPUTE), (const void* const*)A, \
                              TYPE, lda, (const void* const*)B, TYPE, ldb, blas::scalar_of(handle, beta, COMPUTE),     \
                              (void* const*)C, TYPE, ldc, batch);                                                      \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublas##LETTER##gemmStridedBatched(                                                          \
        cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha,        \
        const T* A, int lda, long long sa, const T* B, int ldb, long long sb, const T* beta, T* C, int ldc,            \
        long long sc, int batch)                                                                                       \
    {                                                                                                                  \
        return blas::gemms(handle, ta, tb, m, n, k, blas::scalar_of(handle, alpha, COMPUTE), A, TYPE, lda, sa, B,      \
                           TYPE, ldb, sb, blas::scalar_of(handle, beta, COMPUTE), C, TYPE, ldc, sc, batch);            \
    }
PRODUCTS(S, float, CUDA_R_32F, CUBLAS_COMPUTE_32F)
PRODUCTS(D, double, CUDA_R_64F, CUBLAS_COMPUTE_64F)
PRODUCTS(H, __half, CUDA_R_16F, CUBLAS_COMPUTE_16F)

EXPORT cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                                   int k, const void* alpha, const void* A, cudaDataType at, int lda, const void* B,
                                   cudaDataType bt, int ldb, const void* beta, void* C, cudaDataType ct, int ldc,
                                   cublasComputeType_t compute, cublasGemmAlgo_t)
{
    return blas::gemms(handle, ta, tb, m, n, k, blas::scalar_of(handle, alpha, compute), A, at, lda, 0, B, bt, ldb, 0,
                       blas::scalar_of(handle, beta, compute), C, ct, ldc, 0, 1);
}
EXPORT cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                                                 int m, int n, int k, const void* alpha, const void* A, cudaDataType at,
                                                 int lda, long long sa, const void* B, cudaDataType bt, int ldb,
                                                 long long sb, const void* beta, void* C, cudaDataType ct, int ldc,
                                                 long long sc, int batch, cublasComputeType_t compute, cublasGemmAlgo_t)
{
    return blas::gemms(handle, ta, tb, m, n, k, blas::scalar_of(handle, alpha, compute), A, at, lda, sa, B, bt, ldb, sb,
                       blas::scalar_of(handle, beta, compute), C, ct, ldc, sc, batch);
}
EXPORT cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m,
                                          int n, int k, const void* alpha, const void* const A[], cudaDataType at,
                                          int lda, const void* const B[], cudaDataType bt, int ldb, const void* beta,
                                          void* const C[], cudaDataType ct, int ldc, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t)
{
    return blas::gemms_of(handle, ta, tb, m, n, k, blas::scalar_of(handle, alpha, compute), A, at, lda, B, bt, ldb,
                          blas::scalar_of(handle, beta, compute), C, ct, ldc, batch);
}
EXPORT __typeof__(cublasHgemm) cublasHgemm __attribute__((alias("cublasHgemm_v2")));
EXPORT cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                                    int k, const float* alpha, const void* A, cudaDataType at, int lda, const void* B,
                                    cudaDataType bt, int ldb, const float* beta, void* C, cudaDataType ct, int ldc)
{
    return cublasGemmEx(handle, ta, tb, m, n, k, alpha, A, at, lda, B, bt, ldb, beta, C, ct, ldc, CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT);
}
