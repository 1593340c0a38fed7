// Shared by the kernels of the ladders: the element type `Real`, reductions over a warp and a block, vectors of 16 bytes, and
// wrappers of PTX instructions. What makes a rung different is in the rung itself.
//
// One file for three compilers: NVRTC (no standard headers), nvcc, and the CPU emulator (g++), which brings its own
// versions of the PTX instructions.
#pragma once

#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#ifndef FLT_MAX
#define FLT_MAX 3.402823466e+38f
#endif
#ifndef FLT_EPSILON
#define FLT_EPSILON 1.192092896e-07f
#endif
#ifndef INT_MAX
#define INT_MAX 2147483647
#endif
#ifndef UINT_MAX
#define UINT_MAX 4294967295u
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#else
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// ---- the element type -------------------------------------------------------------------------------------------

#if defined(RUNG_F16)
typedef __half Real;
#elif defined(RUNG_BF16)
typedef __nv_bfloat16 Real;
#else  // RUNG_F32, and RUNG_TF32: floats in memory, rounded by to_tf32 on their way into a tensor core
typedef float Real;
#endif

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x)
{
    return x;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x)
{
    return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

// Two 16-bit numbers in one register, `lo` in the lower half: the form in which mma takes its operands.
template <class T>
__device__ __forceinline__ uint32_t pack2(float lo, float hi);
template <>
__device__ __forceinline__ uint32_t pack2<__half>(float lo, float hi)
{
    return uint32_t(__half_as_ushort(__float2half_rn(lo))) | uint32_t(__half_as_ushort(__float2half_rn(hi))) << 16;
}
template <>
__device__ __forceinline__ uint32_t pack2<__nv_bfloat16>(float lo, float hi)
{
    return uint32_t(__bfloat16_as_ushort(__float2bfloat16_rn(lo))) | uint32_t(__bfloat16_as_ushort(__float2bfloat16_rn(hi)))
                                                                         << 16;
}

// ---- thread numbers ---------------------------------------------------------------------------------------------

constexpr int WARP_SIZE = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

template <class A_, class B_>
__host__ __device__ constexpr A_ ceil_div(A_ a, B_ b)
{
    return (a + b - 1) / b;
}

// The thread's number in its block; x runs fastest, as in the numbering of warps.
__device__ __forceinline__ int thread_rank() { return int((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x); }
__device__ __forceinline__ int lane_id() { return thread_rank() % WARP_SIZE; }
__device__ __forceinline__ int warp_id() { return thread_rank() / WARP_SIZE; }
__device__ __forceinline__ int block_threads() { return int(blockDim.x * blockDim.y * blockDim.z); }

// ---- reductions -------------------------------------------------------------------------------------------------

// All 32 lanes must call; every lane gets the result.
__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}

// All threads must call; every thread gets the result; the block is a whole number of warps. The first barrier waits for an
// earlier call's readers, so that calls may follow one another.
__device__ __forceinline__ float block_sum(float x)
{
    __shared__ float partial[WARP_SIZE];
    const int lane = lane_id(), warps = block_threads() / WARP_SIZE;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) partial[warp_id()] = x;
    __syncthreads();
    return warp_sum(lane < warps ? partial[lane] : 0.0f);
}

__device__ __forceinline__ float block_max(float x)
{
    __shared__ float partial[WARP_SIZE];
    const int lane = lane_id(), warps = block_threads() / WARP_SIZE;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) partial[warp_id()] = x;
    __syncthreads();
    return warp_max(lane < warps ? partial[lane] : -INFINITY);
}

// ---- vectors ----------------------------------------------------------------------------------------------------

template <class T, int N_>
struct alignas(sizeof(T) * N_ < 16 ? sizeof(T) * N_ : 16) Vec
{
    T v[N_];
    __device__ __forceinline__ T& operator[](int i) { return v[i]; }
    __device__ __forceinline__ const T& operator[](int i) const { return v[i]; }
};

constexpr int VEC = 16 / sizeof(Real);  // numbers in one 16-byte load

template <class T>
using Vec16 = Vec<T, int(16 / sizeof(T))>;

template <class T>
__device__ __forceinline__ Vec16<T> vec_from_bits(uint4 bits)
{
    Vec16<T> vec;
    memcpy(&vec, &bits, 16);
    return vec;
}

template <class T, int N_>
__device__ __forceinline__ uint4 bits_of(const Vec<T, N_>& vec)
{
    static_assert(sizeof(vec) == 16, "store_vec and store_stream move 16 bytes");
    uint4 bits;
    memcpy(&bits, &vec, 16);
    return bits;
}

// Addresses must be multiples of 16 bytes.
template <class T>
__device__ __forceinline__ Vec16<T> load_vec(const T* address)
{
    return vec_from_bits<T>(*reinterpret_cast<const uint4*>(address));
}

template <class T, int N_>
__device__ __forceinline__ void store_vec(T* address, const Vec<T, N_>& vec)
{
    *reinterpret_cast<uint4*>(address) = bits_of(vec);
}

// ---- PTX --------------------------------------------------------------------------------------------------------

#if defined(RUNG_EMULATOR)
#include "ptx_emulated.h"
#endif
#include "ptx.cuh"

// For data read once: through the read-only path, without allocating in L1.
template <class T>
__device__ __forceinline__ Vec16<T> load_stream(const T* address)
{
    return vec_from_bits<T>(load_no_allocate(reinterpret_cast<const uint4*>(address)));
}

// For data not read again soon: evicted first from the caches.
template <class T, int N_>
__device__ __forceinline__ void store_stream(T* address, const Vec<T, N_>& vec)
{
    __stcs(reinterpret_cast<uint4*>(address), bits_of(vec));
}
