// Blocks of a cluster (sm_90): the block's rank, the cluster barrier, and the mbarriers of its other blocks.
#pragma once
#include "rung.cuh"

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ int cluster_rank()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return int(rank);
}

// Synchronises all threads of all blocks of the cluster; writes before it, to any block's shared memory, may be read after it.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() { cluster_arrive(), cluster_wait(); }

// The address of the same variable in block `rank`, in the cluster's shared memory.
__device__ __forceinline__ uint32_t cluster_address(const void* smem, int rank)
{
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(smem)), "r"(rank));
    return there;
}

// Loads four floats from that address.
__device__ __forceinline__ float4 cluster_load(uint32_t address)
{
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

// Arrives at block `rank`'s barrier. It orders this thread's accesses to its own block's memory; with .cluster scope ptxas would
// wait for all of the thread's writes.
__device__ __forceinline__ void byte_barrier_arrive_at(uint64_t* barrier, int rank)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(barrier, rank)) : "memory");
}

#endif
