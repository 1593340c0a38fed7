// cuBLASLt: matrix products with epilogues (bias, ReLU, GELU in its tanh form, and their auxiliary outputs and
// gradients), computed on the CPU in the stream's order. Other attributes return "not supported".
#include <cublasLt.h>
#include <math.h>
#include <string.h>

#include "blas.h"

struct cublasLtPreference
{
};
struct cublasLtLayout
{
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
    int order = CUBLASLT_ORDER_COL, batch = 1;
    int64_t stride = 0;

    size_t at(uint64_t i, uint64_t j, int b) const
    { return size_t(b * stride) + size_t(order ? i * ld + j : j * ld + i); }
};

struct cublasLtProduct
{
    cublasComputeType_t compute;
    cudaDataType scale;
    int pointer_mode = 0, ta = 0, tb = 0, epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t bias_stride = 0, aux_ld = 0, aux_stride = 0;
    int bias_type = -1, aux_type = -1;  // those of D
};

EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle)
{ return *handle = new cublasContext, CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return delete handle, CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                               cudaDataType scale)
{ return *product = new cublasLtProduct{compute, scale}, CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product)
{ return delete product, CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                                 uint64_t columns, int64_t ld)
{ return *layout = new cublasLtLayout{type, rows, columns, ld}, CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{ return delete layout, CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made)
{ return *made = new cublasLtPreference, CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made)
{ return delete made, CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                           cublasLtMatmulPreferenceAttributes_t, const void*, size_t)
{ return CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                                     cublasLtMatmulDescAttributes_t attribute, const void* from,
                                                     size_t bytes)
{
    void* to = nullptr;
    size_t room = sizeof(int);
    int ignored;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: to = &product->compute; break;
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE: to = &product->scale; break;
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: to = &product->pointer_mode; break;
    case CUBLASLT_MATMUL_DESC_TRANSA: to = &product->ta; break;
    case CUBLASLT_MATMUL_DESC_TRANSB: to = &product->tb; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: to = &product->epilogue; break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: to = &product->bias_type; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: to = &product->aux_type; break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: to = &product->bias, room = sizeof(void*); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: to = &product->aux, room = sizeof(void*); break;
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: to = &product->bias_stride, room = 8; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: to = &product->aux_ld, room = 8; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: to = &product->aux_stride, room = 8; break;
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: to = &ignored, room = bytes > sizeof ignored ? 0 : bytes; break;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return bytes == room ? (memcpy(to, from, bytes), CUBLAS_STATUS_SUCCESS) : CUBLAS_STATUS_INVALID_VALUE;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                       cublasLtMatrixLayoutAttribute_t attribute, const void* from,
                                                       size_t bytes)
{
    void* const to[] = {&layout->type, &layout->order, &layout->rows,  &layout->columns,
                        &layout->ld,   &layout->batch, &layout->stride};
    const size_t room[] = {4, 4, 8, 8, 8, 4, 8};
    return bytes == room[attribute] ? (memcpy(to[attribute], from, bytes), CUBLAS_STATUS_SUCCESS)
                                    : CUBLAS_STATUS_INVALID_VALUE;
}

namespace blas {

bool fit(const cublasLtProduct& p, const cublasLtLayout& A, const cublasLtLayout& B, const cublasLtLayout& D)
{
    const auto [m, k] = p.ta ? std::pair(A.columns, A.rows) : std::pair(A.rows, A.columns);
    const auto [l, n] = p.tb ? std::pair(B.columns, B.rows) : std::pair(B.rows, B.columns);
    return D.rows == m && D.columns == n && k == l && A.batch == B.batch && A.batch == D.batch;
}

double epilogue(const cublasLtProduct& p, double x, uint64_t i, uint64_t j, int b, cudaDataType type)
{
    const auto of = [type](int given) { return given < 0 ? type : cudaDataType(given); };
    const size_t aux = size_t(b * p.aux_stride) + j * size_t(p.aux_ld) + i;
    const bool gelu = p.epilogue & 32, relu = p.epilogue & 2;
    if (p.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        const double y = number(p.aux, aux, of(p.aux_type)), t = tanh(0.7978845608028654 * (y + 0.044715 * y * y * y));
        return x * (0.5 * (1 + t) + 0.5 * y * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * y * y));
    }
    if (p.epilogue & 4) x += number(p.bias, size_t(b * p.bias_stride) + i, of(p.bias_type));
    if (p.epilogue & 128 && gelu) put(p.aux, aux, of(p.aux_type), x);
    if (p.epilogue & 128 && relu) {  // one bit per element
        unsigned char& byte = static_cast<unsigned char*>(p.aux)[aux / 8];
        byte = (unsigned char)((byte & ~(1u << aux % 8)) | unsigned(x > 0) << aux % 8);
    }
    return gelu ? 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))) : relu ? fmax(x, 0.0) : x;
}

}  // namespace blas

EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                                     cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t D,
                                                     cublasLtMatmulPreference_t, int asked,
                                                     cublasLtMatmulHeuristicResult_t* results, int* found)
{
    if (asked < 1 || !blas::fit(*product, *A, *B, *D)) return *found = 0, CUBLAS_STATUS_INVALID_VALUE;
    results[0] = {};
    return *found = 1, CUBLAS_STATUS_SUCCESS;
}

// D = epilogue(alpha op(A) op(B) + beta C), sums in double.
EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t given, const void* alpha,
                                     const void* A, cublasLtMatrixLayout_t of_a, const void* B,
                                     cublasLtMatrixLayout_t of_b, const void* beta, const void* C,
                                     cublasLtMatrixLayout_t of_c, void* D, cublasLtMatrixLayout_t of_d,
                                     const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream)
{
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    cublasLtProduct p = *given;
    if (!blas::fit(p, *of_a, *of_b, *of_d)) return CUBLAS_STATUS_INVALID_VALUE;
    if ((p.epilogue & 4 && !p.bias) || (p.epilogue & 128 && !p.aux)) return CUBLAS_STATUS_INVALID_VALUE;
    if (p.epilogue & 768 && !p.bias) return CUBLAS_STATUS_INVALID_VALUE;
    if (!p.aux_ld) p.aux_ld = int64_t(of_d->rows);
    cublasContext scalars = *handle;
    scalars.pointer_mode = p.pointer_mode;
    const cublasComputeType_t compute = p.scale == CUDA_R_64F   ? CUBLAS_COMPUTE_64F
                                        : p.scale == CUDA_R_16F ? CUBLAS_COMPUTE_16F
                                                                : CUBLAS_COMPUTE_32F;
    const auto a = blas::scalar_of(&scalars, alpha, compute), b = blas::scalar_of(&scalars, beta, compute);
    return blas::later(stream, [=, la = *of_a, lb = *of_b, lc = *of_c, ld = *of_d] {
        const uint64_t depth = p.ta ? la.rows : la.columns;
        for (int batch = 0; batch < ld.batch; batch++) {
            for (uint64_t j = 0; j < ld.columns; j++)
                for (uint64_t i = 0; i < ld.rows; i++) {
                    double sum = 0;
                    for (uint64_t l = 0; l < depth; l++)
                        sum += blas::number(A, p.ta ? la.at(l, i, batch) : la.at(i, l, batch), la.type) *
                               blas::number(B, p.tb ? lb.at(j, l, batch) : lb.at(l, j, batch), lb.type);
                    sum = a() * sum + (b() ? b() * blas::number(C, lc.at(i, j, batch), lc.type) : 0);
                    blas::put(D, ld.at(i, j, batch), ld.type, blas::epilogue(p, sum, i, j, batch, ld.type));
                }
            // Gradients of a bias: sums over the products' other side.
            const cudaDataType type = p.bias_type < 0 ? ld.type : cudaDataType(p.bias_type);
            const uint64_t rows = p.epilogue == CUBLASLT_EPILOGUE_BGRADA   ? ld.rows
                                  : p.epilogue == CUBLASLT_EPILOGUE_BGRADB ? ld.columns
                                                                           : 0;
            for (uint64_t i = 0; i < rows; i++) {
                double sum = 0;
                for (uint64_t l = 0; l < depth; l++)
                    sum += p.epilogue == CUBLASLT_EPILOGUE_BGRADA
                               ? blas::number(A, p.ta ? la.at(l, i, batch) : la.at(i, l, batch), la.type)
                               : blas::number(B, p.tb ? lb.at(i, l, batch) : lb.at(l, i, batch), lb.type);
                blas::put(p.bias, size_t(batch * p.bias_stride) + i, type, sum);
            }
        }
    });
}

EXPORT size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
