// A cluster of blocks (sm_90 and later): the block's rank, the cluster barrier, other blocks' shared memory; 64-bit sums.
#pragma once
#include "rung.cuh"

namespace cluster {

typedef unsigned long long uint64;  // the type that shuffles and atomics take

__device__ __forceinline__ int rank()
{
#if __CUDA_ARCH__ >= 900
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return int(rank);
#else
    return 0;
#endif
}

// Writes before it, to any block's shared memory, may be read by all threads after it.
__device__ __forceinline__ void sync()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// The same variable of block `rank`.
template <class T>
__device__ __forceinline__ T* of(T* shared, int rank)
{
#if __CUDA_ARCH__ >= 900
    uint64_t there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(reinterpret_cast<uint64_t>(shared)), "r"(rank));
    return reinterpret_cast<T*>(there);
#else
    return shared;
#endif
}

// Writes x to every block; all lanes of the warp pass the same x.
template <int BLOCKS, class T>
__device__ __forceinline__ void tell(T* shared, T x)
{
    if (lane_id() < BLOCKS) *of(shared, lane_id()) = x;
}

__device__ __forceinline__ uint64 warp_total(uint64 x)
{
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

__device__ __forceinline__ uint64 warp_upto(uint64 x)
{
    for (int offset = 1; offset < WARP_SIZE; offset *= 2) {
        const uint64 left = __shfl_up_sync(ALL_LANES, x, offset);
        if (lane_id() >= offset) x += left;
    }
    return x;
}

}  // namespace cluster
