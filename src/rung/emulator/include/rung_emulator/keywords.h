// CUDA's keywords. __shared__ is thread_local: it is valid in functions, at namespace scope and after `extern`, and it
// places all shared variables in one block of memory per library, which the runtime locates.
#pragma once

#define RUNG_EMULATOR 1
#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

#ifdef RUNG_PROGRAM  // left for emulator/rewriting.py
#define __global__ __rung_global__
#define __shared__ __rung_shared__
#define __cluster_dims__(...) __rung_cluster__(__VA_ARGS__)
#else
#define __global__
#define __shared__ thread_local
#define __cluster_dims__(...)
#ifdef RUNG_INLINED
#define __noinline__
#else
#define __noinline__ __attribute__((noinline))
#endif
#endif
#define __device__
#define __host__
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

#ifndef RUNG_PROGRAM
#define assert(condition) \
    ((condition) ? (void)0 \
                 : rung_fault(rung_emulator::FaultKind::Trap, {__FILE__, __LINE__}, "assertion failed: " #condition))
#endif
#define __trap() rung_fault(rung_emulator::FaultKind::Trap, {__FILE__, __LINE__}, "the kernel called __trap")
