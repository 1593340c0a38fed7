// What cuBLAS and cuBLASLt share: work on the CPU in a stream's order, numbers of several formats, scalars of either
// side.
#pragma once

#include <cublas_v2.h>
#include <cuda.h>

#include <functional>
#include <initializer_list>
#include <utility>

#define EXPORT extern "C" __attribute__((visibility("default")))

struct cublasContext
{
    cudaStream_t stream = nullptr;
    int pointer_mode = CUBLAS_POINTER_MODE_HOST, math_mode = CUBLAS_DEFAULT_MATH;
};

namespace blas {

// A graph's node runs its work more than once, so that it is never freed.
inline cublasStatus_t later(cudaStream_t stream, std::function<void()> work)
{
    const auto run = [](void* held) { (*static_cast<std::function<void()>*>(held))(); };
    return cuLaunchHostFunc(stream, run, new std::function<void()>(std::move(work))) ? CUBLAS_STATUS_EXECUTION_FAILED
                                                                                     : CUBLAS_STATUS_SUCCESS;
}

// A scalar is read at the call, or, with pointer mode "device", when the work runs.
template <class S>
std::function<S()> scalar(cublasHandle_t handle, const S* at)
{
    if (handle->pointer_mode) return [at] { return *at; };
    return [value = *at] { return value; };
}

inline std::function<double()> scalar_of(cublasHandle_t handle, const void* at, cublasComputeType_t compute)
{
    if (compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC)
        return scalar(handle, static_cast<const double*>(at));
    if (compute == CUBLAS_COMPUTE_16F || compute == CUBLAS_COMPUTE_16F_PEDANTIC)
        return [read = scalar(handle, static_cast<const __half*>(at))] { return double(__half2float(read())); };
    if (compute == CUBLAS_COMPUTE_32I || compute == CUBLAS_COMPUTE_32I_PEDANTIC)
        return [read = scalar(handle, static_cast<const int*>(at))] { return double(read()); };
    return [read = scalar(handle, static_cast<const float*>(at))] { return double(read()); };
}

// Whether `number` and `put` know these formats; a function refuses others.
inline bool are_known(std::initializer_list<cudaDataType> types)
{
    for (const cudaDataType type : types)
        if (type != CUDA_R_32F && type != CUDA_R_64F && type != CUDA_R_16F && type != CUDA_R_16BF &&
            type != CUDA_R_8I && type != CUDA_R_32I)
            return false;
    return true;
}

inline double number(const void* at, size_t i, cudaDataType type)
{
    switch (type) {
    case CUDA_R_32F: return static_cast<const float*>(at)[i];
    case CUDA_R_64F: return static_cast<const double*>(at)[i];
    case CUDA_R_16F: return __half2float(static_cast<const __half*>(at)[i]);
    case CUDA_R_16BF: return __bfloat162float(static_cast<const __nv_bfloat16*>(at)[i]);
    case CUDA_R_8I: return static_cast<const signed char*>(at)[i];
    case CUDA_R_32I: return static_cast<const int*>(at)[i];
    default: return 0;
    }
}

inline void put(void* at, size_t i, cudaDataType type, double value)
{
    switch (type) {
    case CUDA_R_32F: static_cast<float*>(at)[i] = float(value); break;
    case CUDA_R_64F: static_cast<double*>(at)[i] = value; break;
    case CUDA_R_16F: static_cast<__half*>(at)[i] = __float2half(float(value)); break;
    case CUDA_R_16BF: static_cast<__nv_bfloat16*>(at)[i] = __float2bfloat16(float(value)); break;
    case CUDA_R_8I: static_cast<signed char*>(at)[i] = static_cast<signed char>(value); break;
    case CUDA_R_32I: static_cast<int*>(at)[i] = int(value); break;
    default: break;
    }
}

inline size_t bytes_of(cudaDataType type)
{ return type == CUDA_R_64F ? 8 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : type == CUDA_R_8I ? 1 : 4; }

}  // namespace blas
