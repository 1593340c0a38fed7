// Named wrappers of PTX instructions. Included by rung.cuh. The emulator interprets PTX, here and in any kernel; for the
// functions that hot loops call it has plain C++ versions (ptx_emulated.h), and skips those here.
#pragma once

// ---- memory -----------------------------------------------------------------------------------------------------

#ifndef RUNG_EMULATOR
__device__ __forceinline__ uint4 load_no_allocate(const uint4* address)
{
    uint4 r;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(address));
    return r;
}
#endif

__device__ __forceinline__ uint32_t shared_address(const void* smem)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(smem));
}

#ifndef RUNG_EMULATOR
// Asynchronous copies from global to shared memory (sm_80). The data may be read after cp_async_wait by the thread that copied,
// and by others after a barrier that follows the wait. An invalid copy reads nothing and writes zeros.
__device__ __forceinline__ void cp_async_16(void* smem, const void* gmem, bool valid = true)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(smem)), "l"(gmem), "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void cp_async_4(void* smem, const void* gmem, bool valid = true)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(smem)), "l"(gmem), "r"(valid ? 4 : 0)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N_ of the committed groups are still in flight.
template <int N_>
__device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N_) : "memory");
}
#endif

#if __CUDA_ARCH__ >= 900
// An mbarrier in shared memory for `arrivals`, and for bytes if any are expected. The thread that initialises it
// may use it at once, others after a __syncthreads.
__device__ __forceinline__ void byte_barrier_init(uint64_t* barrier, unsigned arrivals = 1)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

__device__ __forceinline__ void byte_barrier_arrive(uint64_t* barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// __syncthreads for the first THREADS_ of the block.
template <int THREADS_>
__device__ __forceinline__ void sync_first()
{
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS_) : "memory");
}

__device__ __forceinline__ void byte_barrier_expect(uint64_t* barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Waits until the phase of this parity (0, 1, 0, ...) is complete.
__device__ __forceinline__ void byte_barrier_wait(uint64_t* barrier, unsigned parity)
{
    unsigned complete = 0;
#if defined(RUNG_WATCHDOG)  // a build for debugging: a thread that waits too long stops the kernel
    const long long start = clock64();
#endif
    while (!complete) {
#if defined(RUNG_WATCHDOG)
        if (clock64() - start > 2000000000ll) __trap();
#endif
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(complete)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    }
}

// Makes this thread's ordinary writes to shared memory visible to the copy engine and to wgmma, after a barrier that follows.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// __syncthreads for THREADS of the block, which all pass the same number (1 to 15); or arrive there without waiting.
template <int THREADS_>
__device__ __forceinline__ void sync_some(int number)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS_) : "memory");
}
template <int THREADS_>
__device__ __forceinline__ void arrive_some(int number)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(THREADS_) : "memory");
}

// True in one lane of a whole warp, and the compiler can assume that it is only one.
__device__ __forceinline__ bool elect_one()
{
    uint32_t chosen;
    asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(chosen));
    return chosen;
}

// The counterpart of ldmatrix_x4: lane i passes the address of row i % 8 of 8x8 matrix i / 8.
__device__ __forceinline__ void stmatrix_x4(void* smem, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(smem)), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

// Copies multiples of 16 bytes from global to shared memory by the copy engine; called by one thread.
__device__ __forceinline__ void bulk_copy(uint32_t smem, const void* gmem, unsigned bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem), "l"(gmem),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void bulk_copy(void* smem, const void* gmem, unsigned bytes, uint64_t* barrier)
{
    bulk_copy(shared_address(smem), gmem, bytes, shared_address(barrier));
}

// The same with the evict-first policy: for data that no other reader needs, so that L2 keeps other lines.
__device__ __forceinline__ void bulk_copy_once(void* smem, const void* gmem, unsigned bytes, uint64_t* barrier)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            shared_address(smem)),
        "l"(gmem), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}
#endif

#ifndef RUNG_EMULATOR
// The same four words, opaque to the compiler: it does not keep values that it has computed from them.
__device__ __forceinline__ uint4 renewed(uint4 words)
{
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
    return words;
}
#endif

// ---- tensor cores -----------------------------------------------------------------------------------------------

#ifndef RUNG_EMULATOR
// Lane i passes the address of row i % 8 of 8x8 matrix i / 8 (16 bytes per row). Register j of lane i then holds
// elements 2 * (i % 4) and the next of row i / 4 of matrix j; `trans` takes the matrices transposed.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(smem))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(smem))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void* smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(smem))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], const void* smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(smem))
                 : "memory");
}

// d += a * b for a tile of 16 x 8, 16 deep, by one warp. With g = lane / 4 and t = lane % 4:
//   a: row g | row g + 8 | row g | row g + 8, columns 2t, 2t+1 (the last two registers: + 8)
//   b: rows 2t, 2t+1 (second register: + 8) of column g
//   d: (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1)
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same with tf32 operands, 8 deep:
//   a: (g, t) (g+8, t) (g, t+4) (g+8, t+4)     b: (t, g) (t+4, g)     d: as above
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Ten bits of mantissa; to nearest, ties away from zero.
__device__ __forceinline__ uint32_t to_tf32(float x)
{
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}

// tanh by the special function unit, to 11 bits (sm_75).
__device__ __forceinline__ float tanh_approx(float x)
{
    float r;
    asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
#endif

// ---- programmatic dependent launch ------------------------------------------------------------------------------

// Code before pdl_wait may run while the previous kernel of the stream still runs; its results may be read after the wait.
__device__ __forceinline__ void pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream start once every block has called this (or ended).
__device__ __forceinline__ void pdl_launch_dependents()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
