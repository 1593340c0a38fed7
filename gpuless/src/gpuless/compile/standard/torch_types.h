// What torch's headers bring along for kernels: numbers of 16 bits, and torch's names of them. Its functions are the host's.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace c10 {
using Half = __half;
using BFloat16 = __nv_bfloat16;
}  // namespace c10

namespace at {
using c10::BFloat16;
using c10::Half;
template <class T>
struct OpMathType {  // numbers of 16 bits are computed with as float
    using type = T;
};
template <>
struct OpMathType<Half> {
    using type = float;
};
template <>
struct OpMathType<BFloat16> {
    using type = float;
};
template <class T>
using opmath_type = typename OpMathType<T>::type;
template <class T, bool>
using acc_type = opmath_type<T>;
}  // namespace at

#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_WARP_SIZE 32
#define C10_LAUNCH_BOUNDS_1(threads) __launch_bounds__(threads)
#define C10_LAUNCH_BOUNDS_2(threads, blocks) __launch_bounds__(threads, blocks)
#define CUDA_KERNEL_LOOP_TYPE(i, n, type) \
    for (type i = (type)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (type)blockDim.x * gridDim.x)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)
