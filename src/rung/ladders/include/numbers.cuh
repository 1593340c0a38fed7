// The numbers in 16 bytes, converted where they are used: kept as they were loaded, they take half the registers of floats.
#pragma once
#include "rung.cuh"

// Number i as a float. A bf16 is the upper half of a float: one shift, or one mask.
__device__ __forceinline__ float number_at(const uint4& bits, int i)
{
#if defined(RUNG_BF16)
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
#else
    return to_float(vec_from_bits<Real>(bits)[i]);
#endif
}
