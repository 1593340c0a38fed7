// CUDA's keywords in the host's part of a program. emulator/rewriting.py replaces those that begin with __rung.
#pragma once

#define RUNG_EMULATOR 1
#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

#ifdef RUNG_CU
#define __global__ __rung_global__
#define __shared__ __rung_shared__
#define __device__ __rung_device__
#define __host__ __rung_on_host__
#define __cluster_dims__(...) __rung_cluster__(__VA_ARGS__)
#else  // a file of plain C++, which is not rewritten
#define __global__
#define __shared__
#define __device__
#define __host__
#define __cluster_dims__(...)
#endif
#define __constant__ __attribute__((visibility("default")))
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __block_size__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __inline_hint__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __nv_pure__ __attribute__((pure))
#define __builtin_assume(condition) do { if (!(condition)) __builtin_unreachable(); } while (0)
#define __builtin_nontemporal_load(address) (*(address))
#define __assume(condition) __builtin_assume(condition)
#define __trap() __builtin_trap()
