// Shared memory of the other blocks of a cluster, and 64-bit sums of a warp.
#pragma once
#include "block_cluster.cuh"

namespace cluster {

typedef unsigned long long uint64;  // the type that shuffles and atomics take

// The same variable of block `rank`.
template <class T>
__device__ __forceinline__ T* of(T* shared, int rank)
{
    uint64_t there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(reinterpret_cast<uint64_t>(shared)), "r"(rank));
    return reinterpret_cast<T*>(there);
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
