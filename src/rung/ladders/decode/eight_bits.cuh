// 8-bit weights in the format of the tensor cores.
#pragma once
#include "rung.cuh"

namespace decode {

// Four 8-bit integers as halves: a byte b + 128 in the low bits of 1024 is the half 1152 + b.
__device__ __forceinline__ void as_halves(uint32_t bytes, uint32_t& lower, uint32_t& upper)
{
    const uint32_t moved = bytes ^ 0x80808080u, least = 0x64806480u;  // 1152 twice
    lower = __byte_perm(moved, 0x64646464u, 0x4140), upper = __byte_perm(moved, 0x64646464u, 0x4342);
    asm("sub.f16x2 %0, %0, %1;" : "+r"(lower) : "r"(least));
    asm("sub.f16x2 %0, %0, %1;" : "+r"(upper) : "r"(least));
}

}  // namespace decode
