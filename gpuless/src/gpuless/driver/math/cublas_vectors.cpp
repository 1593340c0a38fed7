// cuBLAS: functions of vectors, of a matrix and a vector, and of special matrices.
#include "blas.h"

namespace blas {
// A function with a result: the host waits for it unless the result lies on the device.
template <class R, class F>
cublasStatus_t reduced(cublasHandle_t handle, R* result, F compute)
{
    const cublasStatus_t status = later(handle->stream, [=] { *result = R(compute()); });
    if (!handle->pointer_mode) cuStreamSynchronize(handle->stream);
    return status;
}
template <class T, class Better>
int extreme(int n, const T* x, int incx, Better better)  // counted from 1
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (better(x[i * incx] < 0 ? -x[i * incx] : x[i * incx], x[best * incx] < 0 ? -x[best * incx] : x[best * incx]))
            best = i;
    return n > 0 ? best + 1 : 0;
}
template <class T>
cublasStatus_t gemv(cublasHandle_t handle, cublasOperation_t ta, int m, int n, const T* alpha, const T* A, int lda,
                    const T* x, int incx, const T* beta, T* y, int incy)
{
    if (incx < 1 || incy < 1 || lda < m) return CUBLAS_STATUS_INVALID_VALUE;
    return later(handle->stream, [=, a = scalar(handle, alpha), b = scalar(handle, beta)] {
        for (int i = 0; i < (ta ? n : m); i++) {
            double sum = 0;
            for (int p = 0; p < (ta ? m : n); p++)
                sum += double(A[ta ? size_t(i) * lda + p : size_t(p) * lda + i]) * x[p * incx];
            y[i * incy] = T(a() * sum + (b() ? b() * y[i * incy] : 0));
        }
    });
}
}  // namespace blas
#define VECTORS(L, l, T)                                                                                               \
    EXPORT cublasStatus_t cublas##L##gemv_v2(cublasHandle_t handle, cublasOperation_t ta, int m, int n,                \
                                             const T* alpha, const T* A, int lda, const T* x, int incx, const T* beta, \
                                             T* y, int incy)                                                           \
    { return blas::gemv(handle, ta, m, n, alpha, A, lda, x, incx, beta, y, incy); }                                    \
    EXPORT cublasStatus_t cublas##L##geam(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m,    \
                                          int n, const T* alpha, const T* A, int lda, const T* beta, const T* B,       \
                                          int ldb, T* C, int ldc)                                                      \
    {                                                                                                                  \
        return blas::later(handle->stream, [=, a = blas::scalar(handle, alpha), b = blas::scalar(handle, beta)] {      \
            const T x = a(), y = b();                                                                                  \
            for (int j = 0; j < n; j++)                                                                                \
                for (int i = 0; i < m; i++)                                                                            \
                    C[size_t(j) * ldc + i] = (x ? x * A[ta ? size_t(i) * lda + j : size_t(j) * lda + i] : 0) +         \
                                             (y ? y * B[tb ? size_t(i) * ldb + j : size_t(j) * ldb + i] : 0);          \
        });                                                                                                            \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublas##L##ger_v2(cublasHandle_t handle, int m, int n, const T* alpha, const T* x, int incx, \
                                            const T* y, int incy, T* A, int lda)                                       \
    {                                                                                                                  \
        return blas::later(handle->stream, [=, a = blas::scalar(handle, alpha)] {                                      \
            for (int j = 0; j < n; j++)                                                                                \
                for (int i = 0; i < m; i++) A[size_t(j) * lda + i] += a() * x[i * incx] * y[j * incy];                 \
        });                                                                                                            \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublas##L##axpy_v2(cublasHandle_t handle, int n, const T* alpha, const T* x, int incx, T* y, \
                                             int incy)                                                                 \
    {                                                                                                                  \
        return blas::later(handle->stream, [=, a = blas::scalar(handle, alpha)] {                                      \
            for (int i = 0; i < n; i++) y[i * incy] += a() * x[i * incx];                                              \
        });                                                                                                            \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublas##L##scal_v2(cublasHandle_t handle, int n, const T* alpha, T* x, int incx)             \
    {                                                                                                                  \
        return blas::later(handle->stream, [=, a = blas::scalar(handle, alpha)] {                                      \
            for (int i = 0; i < n; i++) x[i * incx] *= a();                                                            \
        });                                                                                                            \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublas##L##copy_v2(cublasHandle_t handle, int n, const T* x, int incx, T* y, int incy)       \
    {                                                                                                                  \
        return blas::later(handle->stream, [=] {                                                                       \
            for (int i = 0; i < n; i++) y[i * incy] = x[i * incx];                                                     \
        });                                                                                                            \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublas##L##swap_v2(cublasHandle_t handle, int n, T* x, int incx, T* y, int incy)             \
    {                                                                                                                  \
        return blas::later(handle->stream, [=] {                                                                       \
            for (int i = 0; i < n; i++) {                                                                              \
                const T t = x[i * incx];                                                                               \
                x[i * incx] = y[i * incy], y[i * incy] = t;                                                            \
            }                                                                                                          \
        });                                                                                                            \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublas##L##dot_v2(cublasHandle_t handle, int n, const T* x, int incx, const T* y, int incy,  \
                                            T* result)                                                                 \
    {                                                                                                                  \
        return blas::reduced(handle, result, [=] {                                                                     \
            double sum = 0;                                                                                            \
            for (int i = 0; i < n; i++) sum += double(x[i * incx]) * y[i * incy];                                      \
            return sum;                                                                                                \
        });                                                                                                            \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublas##L##nrm2_v2(cublasHandle_t handle, int n, const T* x, int incx, T* result)            \
    {                                                                                                                  \
        return blas::reduced(handle, result, [=] {                                                                     \
            double sum = 0;                                                                                            \
            for (int i = 0; i < n; i++) sum += double(x[i * incx]) * x[i * incx];                                      \
            return __builtin_sqrt(sum);                                                                                \
        });                                                                                                            \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublas##L##asum_v2(cublasHandle_t handle, int n, const T* x, int incx, T* result)            \
    {                                                                                                                  \
        return blas::reduced(handle, result, [=] {                                                                     \
            double sum = 0;                                                                                            \
            for (int i = 0; i < n; i++) sum += __builtin_fabs(double(x[i * incx]));                                    \
            return sum;                                                                                                \
        });                                                                                                            \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublasI##l##amax_v2(cublasHandle_t handle, int n, const T* x, int incx, int* result)         \
    {                                                                                                                  \
        return blas::reduced(handle, result,                                                                           \
                             [=] { return blas::extreme(n, x, incx, [](T a, T b) { return a > b; }); });               \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublasI##l##amin_v2(cublasHandle_t handle, int n, const T* x, int incx, int* result)         \
    {                                                                                                                  \
        return blas::reduced(handle, result,                                                                           \
                             [=] { return blas::extreme(n, x, incx, [](T a, T b) { return a < b; }); });               \
    }
VECTORS(S, s, float)
VECTORS(D, d, double)
#undef VECTORS

// ---- numbers of any format

namespace blas {
double product_of(int n, const void* x, cudaDataType xt, int incx, const void* y, cudaDataType yt, int incy)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += number(x, size_t(i) * incx, xt) * number(y, size_t(i) * incy, yt);
    return sum;
}
cublasStatus_t reduced_to(cublasHandle_t handle, void* result, cudaDataType type, std::function<double()> compute)
{
    const cublasStatus_t status = later(handle->stream, [=] { put(result, 0, type, compute()); });
    if (!handle->pointer_mode) cuStreamSynchronize(handle->stream);
    return status;
}
}  // namespace blas
EXPORT cublasStatus_t cublasDotEx(cublasHandle_t handle, int n, const void* x, cudaDataType xt, int incx, const void* y,
                                  cudaDataType yt, int incy, void* result, cudaDataType rt, cudaDataType)
{
    if (!blas::are_known({xt, yt, rt})) return CUBLAS_STATUS_NOT_SUPPORTED;
    return blas::reduced_to(handle, result, rt, [=] { return blas::product_of(n, x, xt, incx, y, yt, incy); });
}
EXPORT __typeof__(cublasDotEx) cublasDotcEx __attribute__((alias("cublasDotEx")));
EXPORT cublasStatus_t cublasNrm2Ex(cublasHandle_t handle, int n, const void* x, cudaDataType xt, int incx, void* result,
                                   cudaDataType rt, cudaDataType)
{
    if (!blas::are_known({xt, rt})) return CUBLAS_STATUS_NOT_SUPPORTED;
    return blas::reduced_to(handle, result, rt,
                            [=] { return __builtin_sqrt(blas::product_of(n, x, xt, incx, x, xt, incx)); });
}
EXPORT cublasStatus_t cublasAxpyEx(cublasHandle_t handle, int n, const void* alpha, cudaDataType at, const void* x,
                                   cudaDataType xt, int incx, void* y, cudaDataType yt, int incy, cudaDataType)
{
    if (!blas::are_known({at, xt, yt})) return CUBLAS_STATUS_NOT_SUPPORTED;
    const double given = handle->pointer_mode ? 0 : blas::number(alpha, 0, at);
    return blas::later(handle->stream, [=] {
        const double a = handle->pointer_mode ? blas::number(alpha, 0, at) : given;
        for (int i = 0; i < n; i++)
            blas::put(y, size_t(i) * incy, yt,
                      blas::number(y, size_t(i) * incy, yt) + a * blas::number(x, size_t(i) * incx, xt));
    });
}
EXPORT cublasStatus_t cublasScalEx(cublasHandle_t handle, int n, const void* alpha, cudaDataType at, void* x,
                                   cudaDataType xt, int incx, cudaDataType)
{
    if (!blas::are_known({at, xt})) return CUBLAS_STATUS_NOT_SUPPORTED;
    const double given = handle->pointer_mode ? 0 : blas::number(alpha, 0, at);
    return blas::later(handle->stream, [=] {
        const double a = handle->pointer_mode ? blas::number(alpha, 0, at) : given;
        for (int i = 0; i < n; i++) blas::put(x, size_t(i) * incx, xt, a * blas::number(x, size_t(i) * incx, xt));
    });
}

// ---- matrices of which one half is given

namespace blas {
namespace {
// An element of a symmetric matrix, or of a triangular one (`unit`: with ones on its diagonal).
template <class T>
double symmetric(const T* A, int lda, bool lower, int i, int j)
{ return lower == (i >= j) || i == j ? A[size_t(j) * lda + i] : A[size_t(i) * lda + j]; }

template <class T>
cublasStatus_t symm(cublasHandle_t handle, bool left, bool lower, int m, int n, const T* alpha, const T* A, int lda,
                    const T* B, int ldb, const T* beta, T* C, int ldc)
{
    return later(handle->stream, [=, a = scalar(handle, alpha), b = scalar(handle, beta)] {
        for (int j = 0; j < n; j++)
            for (int i = 0; i < m; i++) {
                double sum = 0;
                for (int l = 0; l < (left ? m : n); l++)
                    sum += left ? symmetric(A, lda, lower, i, l) * B[size_t(j) * ldb + l]
                                : B[size_t(l) * ldb + i] * symmetric(A, lda, lower, l, j);
                T& to = C[size_t(j) * ldc + i];
                to = T(a() * sum + (b() ? b() * to : 0));
            }
    });
}

template <class T>
cublasStatus_t syrk(cublasHandle_t handle, bool lower, bool transposed, int n, int k, const T* alpha, const T* A,
                    int lda, const T* beta, T* C, int ldc)
{
    return later(handle->stream, [=, a = scalar(handle, alpha), b = scalar(handle, beta)] {
        const auto at = [&](int i, int l) { return double(A[transposed ? size_t(i) * lda + l : size_t(l) * lda + i]); };
        for (int j = 0; j < n; j++)
            for (int i = lower ? j : 0; i < (lower ? n : j + 1); i++) {
                double sum = 0;
                for (int l = 0; l < k; l++) sum += at(i, l) * at(j, l);
                T& to = C[size_t(j) * ldc + i];
                to = T(a() * sum + (b() ? b() * to : 0));
            }
    });
}

// op(A) X = alpha B, or X op(A) = alpha B; X takes B's place.
template <class T>
cublasStatus_t trsm(cublasHandle_t handle, bool left, bool lower, bool transposed, bool unit, int m, int n,
                    const T* alpha, const T* A, int lda, T* B, int ldb)
{
    return later(handle->stream, [=, a = scalar(handle, alpha)] {
        const int order = left ? m : n, others = left ? n : m;
        const bool forward = (lower != transposed) == left;
        const auto at = [&](int i, int j) {
            return double(transposed != !left ? A[size_t(i) * lda + j] : A[size_t(j) * lda + i]);
        };
        for (int other = 0; other < others; other++) {
            const auto x = [&](int i) -> T& { return B[left ? size_t(other) * ldb + i : size_t(i) * ldb + other]; };
            for (int step = 0; step < order; step++) {
                const int i = forward ? step : order - 1 - step;
                double sum = a() * x(i);
                for (int before = 0; before < step; before++) {
                    const int j = forward ? before : order - 1 - before;
                    sum -= at(i, j) * x(j);
                }
                x(i) = T(unit ? sum : sum / at(i, i));
            }
        }
    });
}
}  // namespace
}  // namespace blas

#define MATRICES(L, T)                                                                                                 \
    EXPORT cublasStatus_t cublas##L##symm_v2(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t fill,      \
                                             int m, int n, const T* alpha, const T* A, int lda, const T* B, int ldb,   \
                                             const T* beta, T* C, int ldc)                                             \
    {                                                                                                                  \
        return blas::symm(handle, side == CUBLAS_SIDE_LEFT, fill == CUBLAS_FILL_MODE_LOWER, m, n, alpha, A, lda, B,    \
                          ldb, beta, C, ldc);                                                                          \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublas##L##syrk_v2(cublasHandle_t handle, cublasFillMode_t fill, cublasOperation_t ta,       \
                                             int n, int k, const T* alpha, const T* A, int lda, const T* beta, T* C,   \
                                             int ldc)                                                                  \
    {                                                                                                                  \
        return blas::syrk(handle, fill == CUBLAS_FILL_MODE_LOWER, ta != CUBLAS_OP_N, n, k, alpha, A, lda, beta, C,     \
                          ldc);                                                                                        \
    }                                                                                                                  \
    EXPORT cublasStatus_t cublas##L##trsm_v2(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t fill,      \
                                             cublasOperation_t ta, cublasDiagType_t diag, int m, int n,                \
                                             const T* alpha, const T* A, int lda, T* B, int ldb)                       \
    {                                                                                                                  \
        return blas::trsm(handle, side == CUBLAS_SIDE_LEFT, fill == CUBLAS_FILL_MODE_LOWER, ta != CUBLAS_OP_N,         \
                          diag == CUBLAS_DIAG_UNIT, m, n, alpha, A, lda, B, ldb);                                      \
    }
MATRICES(S, float)
MATRICES(D, double)
