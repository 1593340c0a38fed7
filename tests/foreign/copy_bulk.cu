/*---
idea = "One thread asks for 4 KiB at a time."
align = 16
[bind]
src = "x"
dst = "out"
n = "N"
[[launch]]
kernel = "bulk_copy"
grid = "ceil_div(N, 1024)"
block = 128
---*/
// A copy through shared memory with the bulk copy engine: cp.async.bulk and an mbarrier, in PTX of its own.
#include <cstdint>
#include <cuda_runtime.h>

__device__ __forceinline__ uint32_t smem(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void init(uint64_t* bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem(bar)), "r"(count));
}
__device__ __forceinline__ void expect(uint64_t* bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem(bar)), "r"(bytes));
}
__device__ __forceinline__ void wait(uint64_t* bar, int phase) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@p bra done;\n"
        "bra again;\n"
        "done:\n"
        "}\n" ::"r"(smem(bar)), "r"(phase));
}

__global__ void bulk_copy(const float* src, float* dst, int n) {
    __shared__ alignas(128) float tile[1024];
    __shared__ alignas(8) uint64_t bar;
    const int start = blockIdx.x * 1024, here = min(1024, n - start), bulk = here / 4 * 4;
    if (threadIdx.x == 0) {
        init(&bar, 1);
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("fence.proxy.async.shared::cta;");
        expect(&bar, bulk * 4);
        if (bulk) {
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem(tile)),
                "l"(src + start), "r"(bulk * 4), "r"(smem(&bar))
                : "memory");
        }
    }
    __syncthreads();
    wait(&bar, 0);
    for (int i = threadIdx.x; i < bulk; i += blockDim.x) dst[start + i] = tile[i];
    for (int i = bulk + threadIdx.x; i < here; i += blockDim.x) dst[start + i] = src[start + i];
}
