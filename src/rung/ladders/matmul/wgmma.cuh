// Hopper's warpgroup products: 64 rows times N columns, 16 deep; the tensor cores read both operands from shared memory
// asynchronously. A tile's rows are 128 bytes, swizzled so that eight rows never conflict in a bank: piece p (16 bytes) of row r
// is stored at piece p ^ (r % 8).
#pragma once
#include "rung.cuh"

namespace wgmma {

constexpr int ROW_BYTES = 128, DEEP = ROW_BYTES / sizeof(Real), STEP = 16;  // of a tile; of one product
constexpr int THREADS = 128;                                                // four warps

__device__ __forceinline__ int place(int row, int piece) { return row * ROW_BYTES + ((piece ^ (row & 7)) << 4); }

// The layout of lane t of the four on a row: word j of the 8 columns from 8 * j on is columns 2t and 2t + 1.
__device__ __forceinline__ int row_of(int thread, int half)
{
    return thread / WARP_SIZE * 16 + thread % WARP_SIZE / 4 + half * 8;
}

// A tile's descriptor: its address, 1024 bytes from eight rows to the next, 128-byte swizzle.
__device__ __forceinline__ uint64_t describe(const char* tile)
{
    return uint64_t((shared_address(tile) & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most LEFT committed groups are in flight; the compiler must not access the sums before.
template <int LEFT, int N>
__device__ __forceinline__ void await(float (&d)[N])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
    if (LEFT == 0)
#pragma unroll
        for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#ifdef RUNG_BF16
#define WGMMA_TYPES "bf16.bf16"
#else
#define WGMMA_TYPES "f16.f16"
#endif
#define WGMMA_R8(n) "%" #n "0,%" #n "1,%" #n "2,%" #n "3,%" #n "4,%" #n "5,%" #n "6,%" #n "7,%" #n "8,%" #n "9,"
#define WGMMA_D2(i) "+f"(d[i]), "+f"(d[i + 1])
#define WGMMA_D8(i) WGMMA_D2(i), WGMMA_D2(i + 2), WGMMA_D2(i + 4), WGMMA_D2(i + 6)
#define WGMMA_D32(i) WGMMA_D8(i), WGMMA_D8(i + 8), WGMMA_D8(i + 16), WGMMA_D8(i + 24)
#define WGMMA_TO59 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," WGMMA_R8(1) WGMMA_R8(2) WGMMA_R8(3) WGMMA_R8(4) WGMMA_R8(5)

template <int N>
__device__ __forceinline__ void multiply(float (&d)[N / 2], const char* a, const char* b, int step, bool add);

template <>
__device__ __forceinline__ void multiply<128>(float (&d)[64], const char* a, const char* b, int step, bool add)
{
    const uint64_t from_a = describe(a) + step * (STEP * sizeof(Real) >> 4),
                   from_b = describe(b) + step * (STEP * sizeof(Real) >> 4);
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\twgmma.mma_async.sync.aligned.m64n128k16.f32." WGMMA_TYPES
                 " {" WGMMA_TO59 "%60,%61,%62,%63}, %64, %65, p, 1, 1, 0, 0;\n\t}"
                 : WGMMA_D32(0), WGMMA_D32(32)
                 : "l"(from_a), "l"(from_b), "r"(int(add)));
}

template <>
__device__ __forceinline__ void multiply<256>(float (&d)[128], const char* a, const char* b, int step, bool add)
{
    const uint64_t from_a = describe(a) + step * (STEP * sizeof(Real) >> 4),
                   from_b = describe(b) + step * (STEP * sizeof(Real) >> 4);
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\twgmma.mma_async.sync.aligned.m64n256k16.f32." WGMMA_TYPES
                 " {" WGMMA_TO59 WGMMA_R8(6) WGMMA_R8(7) WGMMA_R8(8) WGMMA_R8(9) WGMMA_R8(10)
                     WGMMA_R8(11) "%120,%121,%122,%123,%124,%125,%126,%127}, %128, %129, p, 1, 1, 0, 0;\n\t}"
                 : WGMMA_D32(0), WGMMA_D32(32), WGMMA_D32(64), WGMMA_D32(96)
                 : "l"(from_a), "l"(from_b), "r"(int(add)));
}

// Makes ordinary writes visible to the tensor cores.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int REGISTERS>
__device__ __forceinline__ void keep_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Transposes among four lanes: each lane has one word of each of four groups of eight columns, and gets all four words of one
// group.
__device__ __forceinline__ uint4 gather(uint32_t (&w)[4])
{
    const int t = lane_id() % 4;
#pragma unroll
    for (int far = 1; far <= 2; far *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & far) continue;
            const bool upper = t & far;  // keeps word i + far, passes word i
            const uint32_t other = __shfl_xor_sync(ALL_LANES, upper ? w[i] : w[i + far], far);
            w[i] = upper ? other : w[i], w[i + far] = upper ? w[i + far] : other;
        }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

}  // namespace wgmma
