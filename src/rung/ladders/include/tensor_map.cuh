// Tensor maps (address, sizes, strides, box, swizzle) and the copy engine's copies of whole boxes. The driver encodes a map on a
// GPU, and the emulator has its own encoding; a kernel takes it as `const __grid_constant__ TensorMap name` and passes its
// address. Coordinates are in PTX's order: the fastest dimension first, the reverse of the header's `box`.
#pragma once
#include "rung.cuh"

struct alignas(64) TensorMap
{
    char opaque[128];
};

#if __CUDA_ARCH__ >= 900

// Prefetches the map itself.
__device__ __forceinline__ void tensor_prefetch(const TensorMap* map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies one box to shared memory; its bytes, including those beyond the tensor's edges, count towards the barrier. Called by one
// thread.
__device__ __forceinline__ void tensor_load(void* smem, const TensorMap* map, uint64_t* barrier, int c0, int c1)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
                     shared_address(smem)),
                 "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1)
                 : "memory");
}
__device__ __forceinline__ void tensor_load(void* smem, const TensorMap* map, uint64_t* barrier, int c0, int c1, int c2)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
            shared_address(smem)),
        "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2)
        : "memory");
}
__device__ __forceinline__ void tensor_load(void* smem, const TensorMap* map, uint64_t* barrier, int c0, int c1, int c2, int c3)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
            shared_address(smem)),
        "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

// Copies the box to the same address in every block of the cluster whose bit is set in `blocks`; its bytes count towards their
// barriers.
__device__ __forceinline__ void tensor_load_multicast(void* smem, const TensorMap* map, uint64_t* barrier, uint16_t blocks,
                                                      int c0, int c1)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(shared_address(smem)),
                 "l"(map), "r"(shared_address(barrier)), "h"(blocks), "r"(c0), "r"(c1)
                 : "memory");
}
__device__ __forceinline__ void tensor_load_multicast(void* smem, const TensorMap* map, uint64_t* barrier, uint16_t blocks,
                                                      int c0, int c1, int c2, int c3)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(shared_address(smem)),
                 "l"(map), "r"(shared_address(barrier)), "h"(blocks), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}

// Stores one box from shared memory, except what is beyond the tensor's edges. The threads that wrote it must call
// fence_async_proxy and then a barrier before this.
__device__ __forceinline__ void tensor_store(const TensorMap* map, const void* smem, int c0, int c1)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(shared_address(smem)), "r"(c0), "r"(c1)
                 : "memory");
}
__device__ __forceinline__ void tensor_store(const TensorMap* map, const void* smem, int c0, int c1, int c2)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(shared_address(smem)), "r"(c0), "r"(c1), "r"(c2)
                 : "memory");
}
__device__ __forceinline__ void tensor_store(const TensorMap* map, const void* smem, int c0, int c1, int c2, int c3)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(shared_address(smem)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}

// The thread's stores since the last commit form a group; waits until for all but LEFT groups shared memory has been read, or
// global memory written.
__device__ __forceinline__ void tensor_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int LEFT>
__device__ __forceinline__ void tensor_store_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}
template <int LEFT>
__device__ __forceinline__ void tensor_store_wait()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(LEFT) : "memory");
}

#endif
