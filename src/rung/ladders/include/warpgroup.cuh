// Hopper's warpgroup products (wgmma): 64 rows times N columns, 32 bytes deep. The tensor cores read B, and optionally A, from
// shared memory asynchronously. A warpgroup is four consecutive warps, starting at a multiple of four; all of its threads call
// these functions together.
#pragma once
#include "rung.cuh"

// The tensor cores' operand type: Real, half where a rung of f32 splits its numbers, or 8 bits.
#if defined(MULTIPLY_HALVES)
using Factor = __half;
#elif defined(MULTIPLY_E4M3)
using Factor = uint8_t;
#else
using Factor = Real;
#endif

constexpr int WARPGROUP = 128;                      // threads
constexpr int SWIZZLE_ROW = 128;                    // bytes of a tile's row in the widest swizzle
constexpr int DEEP = SWIZZLE_ROW / sizeof(Factor);  // elements in such a row
constexpr int PRODUCT_STEP = 32;                    // depth of one product in bytes: 16 halves, 8 floats

// Of this thread's N / 2 sums, sums[4 * j + 2 * half] and the next are row warpgroup_row(half), columns 8 * j + warpgroup_column()
// and the next.
__device__ __forceinline__ int warpgroup_row(int half)
{
    return threadIdx.x % WARPGROUP / WARP_SIZE * 16 + threadIdx.x % WARP_SIZE / 4 + half * 8;
}
__device__ __forceinline__ int warpgroup_column() { return threadIdx.x % 4 * 2; }

// The offset of piece p (16 bytes) of row r in a tile with rows of 128 bytes that a tensor map has swizzled.
__device__ __forceinline__ int swizzled_place(int row, int piece) { return row * SWIZZLE_ROW + ((piece ^ (row & 7)) << 4); }

#if __CUDA_ARCH__ >= 900

// The descriptor of a tile in shared memory. The tile starts at a multiple of 8 rows' bytes.
struct SharedTile
{
    uint64_t bits;
    // Advances along each row; by PRODUCT_STEP for the next product of a tile whose rows are rows or columns of the operand.
    __device__ __forceinline__ SharedTile operator+(int bytes) const { return {bits + (bytes >> 4)}; }
};

// Rows of SWIZZLE bytes that run along the depth ("K-major"), as a tensor map with that swizzle copies them.
template <int SWIZZLE = 128>
__device__ __forceinline__ SharedTile tile_along_depth(const void* tile)
{
    constexpr uint64_t KIND = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : SWIZZLE == 32 ? 3 : 0;
    return {uint64_t((shared_address(tile) & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(8 * SWIZZLE >> 4) << 32 | KIND << 62};
}

// Each row of 128 bytes is one step of the depth and runs along the operand's 64 rows or columns ("MN-major", 16-bit types only);
// the next 64 are `apart` bytes further. A product is 16 rows deep: 16 * 128 bytes to the next.
__device__ __forceinline__ SharedTile tile_across_depth(const void* tile, int apart)
{
    return {uint64_t((shared_address(tile) & 0x3ffff) >> 4) | uint64_t(apart >> 4) << 16 | uint64_t(1024 >> 4) << 32 |
            uint64_t(1) << 62};
}

// wgmma.fence: before the first product, and after ordinary instructions have accessed its registers.
__device__ __forceinline__ void warpgroup_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most LEFT committed groups are in flight.
template <int LEFT>
__device__ __forceinline__ void warpgroup_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Makes these registers opaque to the compiler, so that it does not use them before the preceding wait.
template <int COUNT>
__device__ __forceinline__ void warpgroup_settle(float (&sums)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// setmaxnreg: registers per thread of this warpgroup from here on; the warpgroups redistribute the block's registers.
template <int REGISTERS>
__device__ __forceinline__ void warpgroup_give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void warpgroup_take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// ---- sums += a * b, or sums = a * b where `add` is false --------------------------------------------------------
// warpgroup_multiply<N>(sums, a, b, add): both from shared memory, or a from registers (as mma.sync takes it, 16 rows per warp).
// TRANS_B: b is a transposed ("MN-major") tile.

template <int N, bool TRANS_B = false>
__device__ __forceinline__ void warpgroup_multiply(float (&d)[N / 2], SharedTile a, SharedTile b, bool add);
template <int N, bool TRANS_B = false>
__device__ __forceinline__ void warpgroup_multiply(float (&d)[N / 2], const uint32_t (&a)[4], SharedTile b, bool add);

#if defined(MULTIPLY_E4M3)
#define RUNG_WGMMA(N) "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3"
#elif defined(RUNG_BF16)
#define RUNG_WGMMA(N) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16"
#elif defined(RUNG_F16) || defined(MULTIPLY_HALVES)
#define RUNG_WGMMA(N) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16"
#else
#define RUNG_WGMMA(N) "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32"
#endif

// Only 16-bit types may be transposed.
#if (defined(RUNG_BF16) || defined(RUNG_F16) || defined(MULTIPLY_HALVES)) && !defined(MULTIPLY_E4M3)
#define RUNG_WGMMA_END_A(trans) ", p, 1, 1, 0, %" #trans ";\n\t}"
#define RUNG_WGMMA_END(trans) ", p, 1, 1, %" #trans ";\n\t}"
#else
#define RUNG_WGMMA_END_A(trans) ", p, 1, 1;\n\t}  // %" #trans
#define RUNG_WGMMA_END(trans) ", p, 1, 1;\n\t}  // %" #trans
#endif

#define RUNG_WGMMA_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RUNG_WGMMA_R4 "%0,%1,%2,%3"
#define RUNG_WGMMA_R8 RUNG_WGMMA_R4 ",%4,%5,%6,%7"
#define RUNG_WGMMA_R12 RUNG_WGMMA_R8 ",%8,%9,%10,%11"
#define RUNG_WGMMA_R16 RUNG_WGMMA_R12 ",%12,%13,%14,%15"
#define RUNG_WGMMA_R20 RUNG_WGMMA_R16 ",%16,%17,%18,%19"
#define RUNG_WGMMA_R24 RUNG_WGMMA_R20 ",%20,%21,%22,%23"
#define RUNG_WGMMA_R28 RUNG_WGMMA_R24 ",%24,%25,%26,%27"
#define RUNG_WGMMA_R32 RUNG_WGMMA_R28 ",%28,%29,%30,%31"
#define RUNG_WGMMA_R36 RUNG_WGMMA_R32 ",%32,%33,%34,%35"
#define RUNG_WGMMA_R40 RUNG_WGMMA_R36 ",%36,%37,%38,%39"
#define RUNG_WGMMA_R44 RUNG_WGMMA_R40 ",%40,%41,%42,%43"
#define RUNG_WGMMA_R48 RUNG_WGMMA_R44 ",%44,%45,%46,%47"
#define RUNG_WGMMA_R52 RUNG_WGMMA_R48 ",%48,%49,%50,%51"
#define RUNG_WGMMA_R56 RUNG_WGMMA_R52 ",%52,%53,%54,%55"
#define RUNG_WGMMA_R60 RUNG_WGMMA_R56 ",%56,%57,%58,%59"
#define RUNG_WGMMA_R64 RUNG_WGMMA_R60 ",%60,%61,%62,%63"
#define RUNG_WGMMA_R68 RUNG_WGMMA_R64 ",%64,%65,%66,%67"
#define RUNG_WGMMA_R72 RUNG_WGMMA_R68 ",%68,%69,%70,%71"
#define RUNG_WGMMA_R76 RUNG_WGMMA_R72 ",%72,%73,%74,%75"
#define RUNG_WGMMA_R80 RUNG_WGMMA_R76 ",%76,%77,%78,%79"
#define RUNG_WGMMA_R84 RUNG_WGMMA_R80 ",%80,%81,%82,%83"
#define RUNG_WGMMA_R88 RUNG_WGMMA_R84 ",%84,%85,%86,%87"
#define RUNG_WGMMA_R92 RUNG_WGMMA_R88 ",%88,%89,%90,%91"
#define RUNG_WGMMA_R96 RUNG_WGMMA_R92 ",%92,%93,%94,%95"
#define RUNG_WGMMA_R100 RUNG_WGMMA_R96 ",%96,%97,%98,%99"
#define RUNG_WGMMA_R104 RUNG_WGMMA_R100 ",%100,%101,%102,%103"
#define RUNG_WGMMA_R108 RUNG_WGMMA_R104 ",%104,%105,%106,%107"
#define RUNG_WGMMA_R112 RUNG_WGMMA_R108 ",%108,%109,%110,%111"
#define RUNG_WGMMA_R116 RUNG_WGMMA_R112 ",%112,%113,%114,%115"
#define RUNG_WGMMA_R120 RUNG_WGMMA_R116 ",%116,%117,%118,%119"
#define RUNG_WGMMA_R124 RUNG_WGMMA_R120 ",%120,%121,%122,%123"
#define RUNG_WGMMA_R128 RUNG_WGMMA_R124 ",%124,%125,%126,%127"
#define RUNG_WGMMA_D4 RUNG_WGMMA_F4(0)
#define RUNG_WGMMA_D8 RUNG_WGMMA_D4, RUNG_WGMMA_F4(4)
#define RUNG_WGMMA_D12 RUNG_WGMMA_D8, RUNG_WGMMA_F4(8)
#define RUNG_WGMMA_D16 RUNG_WGMMA_D12, RUNG_WGMMA_F4(12)
#define RUNG_WGMMA_D20 RUNG_WGMMA_D16, RUNG_WGMMA_F4(16)
#define RUNG_WGMMA_D24 RUNG_WGMMA_D20, RUNG_WGMMA_F4(20)
#define RUNG_WGMMA_D28 RUNG_WGMMA_D24, RUNG_WGMMA_F4(24)
#define RUNG_WGMMA_D32 RUNG_WGMMA_D28, RUNG_WGMMA_F4(28)
#define RUNG_WGMMA_D36 RUNG_WGMMA_D32, RUNG_WGMMA_F4(32)
#define RUNG_WGMMA_D40 RUNG_WGMMA_D36, RUNG_WGMMA_F4(36)
#define RUNG_WGMMA_D44 RUNG_WGMMA_D40, RUNG_WGMMA_F4(40)
#define RUNG_WGMMA_D48 RUNG_WGMMA_D44, RUNG_WGMMA_F4(44)
#define RUNG_WGMMA_D52 RUNG_WGMMA_D48, RUNG_WGMMA_F4(48)
#define RUNG_WGMMA_D56 RUNG_WGMMA_D52, RUNG_WGMMA_F4(52)
#define RUNG_WGMMA_D60 RUNG_WGMMA_D56, RUNG_WGMMA_F4(56)
#define RUNG_WGMMA_D64 RUNG_WGMMA_D60, RUNG_WGMMA_F4(60)
#define RUNG_WGMMA_D68 RUNG_WGMMA_D64, RUNG_WGMMA_F4(64)
#define RUNG_WGMMA_D72 RUNG_WGMMA_D68, RUNG_WGMMA_F4(68)
#define RUNG_WGMMA_D76 RUNG_WGMMA_D72, RUNG_WGMMA_F4(72)
#define RUNG_WGMMA_D80 RUNG_WGMMA_D76, RUNG_WGMMA_F4(76)
#define RUNG_WGMMA_D84 RUNG_WGMMA_D80, RUNG_WGMMA_F4(80)
#define RUNG_WGMMA_D88 RUNG_WGMMA_D84, RUNG_WGMMA_F4(84)
#define RUNG_WGMMA_D92 RUNG_WGMMA_D88, RUNG_WGMMA_F4(88)
#define RUNG_WGMMA_D96 RUNG_WGMMA_D92, RUNG_WGMMA_F4(92)
#define RUNG_WGMMA_D100 RUNG_WGMMA_D96, RUNG_WGMMA_F4(96)
#define RUNG_WGMMA_D104 RUNG_WGMMA_D100, RUNG_WGMMA_F4(100)
#define RUNG_WGMMA_D108 RUNG_WGMMA_D104, RUNG_WGMMA_F4(104)
#define RUNG_WGMMA_D112 RUNG_WGMMA_D108, RUNG_WGMMA_F4(108)
#define RUNG_WGMMA_D116 RUNG_WGMMA_D112, RUNG_WGMMA_F4(112)
#define RUNG_WGMMA_D120 RUNG_WGMMA_D116, RUNG_WGMMA_F4(116)
#define RUNG_WGMMA_D124 RUNG_WGMMA_D120, RUNG_WGMMA_F4(120)
#define RUNG_WGMMA_D128 RUNG_WGMMA_D124, RUNG_WGMMA_F4(124)

// N columns, N / 2 registers of sums, and the numbers of the asm's operands after these.
#define RUNG_WGMMA_DEFINE(N, SUMS, n0, n1, n2, n3, n4, n5, n6)                                                                   \
    template <>                                                                                                                  \
    __device__ __forceinline__ void warpgroup_multiply<N, false>(float (&d)[SUMS], SharedTile a, SharedTile b, bool add)         \
    {                                                                                                                            \
        RUNG_WGMMA_SHARED(N, SUMS, n0, n1, n2, n3, 0)                                                                            \
    }                                                                                                                            \
    template <>                                                                                                                  \
    __device__ __forceinline__ void warpgroup_multiply<N, true>(float (&d)[SUMS], SharedTile a, SharedTile b, bool add)          \
    {                                                                                                                            \
        RUNG_WGMMA_SHARED(N, SUMS, n0, n1, n2, n3, 1)                                                                            \
    }                                                                                                                            \
    template <>                                                                                                                  \
    __device__ __forceinline__ void warpgroup_multiply<N, false>(float (&d)[SUMS], const uint32_t (&a)[4], SharedTile b,         \
                                                                 bool add)                                                       \
    {                                                                                                                            \
        RUNG_WGMMA_REGISTERS(N, SUMS, n0, n1, n2, n3, n4, n5, n6, 0)                                                             \
    }                                                                                                                            \
    template <>                                                                                                                  \
    __device__ __forceinline__ void warpgroup_multiply<N, true>(float (&d)[SUMS], const uint32_t (&a)[4], SharedTile b,          \
                                                                bool add)                                                        \
    {                                                                                                                            \
        RUNG_WGMMA_REGISTERS(N, SUMS, n0, n1, n2, n3, n4, n5, n6, 1)                                                             \
    }
#define RUNG_WGMMA_SHARED(N, SUMS, n0, n1, n2, n3, TRANS)                                                                        \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #n2 ", 0;\n\t" RUNG_WGMMA(N) " {" RUNG_WGMMA_R##SUMS                   \
                 "}, %" #n0 ", %" #n1 RUNG_WGMMA_END_A(n3)                                                                       \
                 : RUNG_WGMMA_D##SUMS                                                                                            \
                 : "l"(a.bits), "l"(b.bits), "r"(int(add)), "n"(TRANS));
#define RUNG_WGMMA_REGISTERS(N, SUMS, n0, n1, n2, n3, n4, n5, n6, TRANS)                                                         \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #n5 ", 0;\n\t" RUNG_WGMMA(N) " {" RUNG_WGMMA_R##SUMS                   \
                 "}, {%" #n0 ",%" #n1 ",%" #n2 ",%" #n3 "}, %" #n4 RUNG_WGMMA_END(n6)                                            \
                 : RUNG_WGMMA_D##SUMS                                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(int(add)), "n"(TRANS));

RUNG_WGMMA_DEFINE(8, 4, 4, 5, 6, 7, 8, 9, 10)
RUNG_WGMMA_DEFINE(16, 8, 8, 9, 10, 11, 12, 13, 14)
RUNG_WGMMA_DEFINE(24, 12, 12, 13, 14, 15, 16, 17, 18)
RUNG_WGMMA_DEFINE(32, 16, 16, 17, 18, 19, 20, 21, 22)
RUNG_WGMMA_DEFINE(40, 20, 20, 21, 22, 23, 24, 25, 26)
RUNG_WGMMA_DEFINE(48, 24, 24, 25, 26, 27, 28, 29, 30)
RUNG_WGMMA_DEFINE(56, 28, 28, 29, 30, 31, 32, 33, 34)
RUNG_WGMMA_DEFINE(64, 32, 32, 33, 34, 35, 36, 37, 38)
RUNG_WGMMA_DEFINE(72, 36, 36, 37, 38, 39, 40, 41, 42)
RUNG_WGMMA_DEFINE(80, 40, 40, 41, 42, 43, 44, 45, 46)
RUNG_WGMMA_DEFINE(88, 44, 44, 45, 46, 47, 48, 49, 50)
RUNG_WGMMA_DEFINE(96, 48, 48, 49, 50, 51, 52, 53, 54)
RUNG_WGMMA_DEFINE(104, 52, 52, 53, 54, 55, 56, 57, 58)
RUNG_WGMMA_DEFINE(112, 56, 56, 57, 58, 59, 60, 61, 62)
RUNG_WGMMA_DEFINE(120, 60, 60, 61, 62, 63, 64, 65, 66)
RUNG_WGMMA_DEFINE(128, 64, 64, 65, 66, 67, 68, 69, 70)
RUNG_WGMMA_DEFINE(144, 72, 72, 73, 74, 75, 76, 77, 78)
RUNG_WGMMA_DEFINE(160, 80, 80, 81, 82, 83, 84, 85, 86)
RUNG_WGMMA_DEFINE(176, 88, 88, 89, 90, 91, 92, 93, 94)
RUNG_WGMMA_DEFINE(192, 96, 96, 97, 98, 99, 100, 101, 102)
RUNG_WGMMA_DEFINE(208, 104, 104, 105, 106, 107, 108, 109, 110)
RUNG_WGMMA_DEFINE(224, 112, 112, 113, 114, 115, 116, 117, 118)
RUNG_WGMMA_DEFINE(240, 120, 120, 121, 122, 123, 124, 125, 126)
RUNG_WGMMA_DEFINE(256, 128, 128, 129, 130, 131, 132, 133, 134)
#endif
