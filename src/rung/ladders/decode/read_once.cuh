// Copies of what no other reader waits for: L2 gives up such lines first, and keeps what is needed again.
#pragma once
#include "rung.cuh"

namespace decode {

#if !defined(RUNG_EMULATOR) && __CUDA_ARCH__ >= 900
// As bulk_copy: whole pieces of 16 bytes from global to shared memory, asked for by one thread.
__device__ __forceinline__ void bulk_copy_once(void* smem, const void* gmem, unsigned bytes, uint64_t* barrier)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(shared_address(smem)), "l"(gmem), "r"(bytes), "r"(shared_address(barrier)), "l"(policy) : "memory");
}
#endif

}  // namespace decode
