// Heads' keys and values as 8-bit integers with one scale each.
#pragma once
#include "rung.cuh"

constexpr int QUANTISED_EACH = 16;  // numbers of a lane: 16 bytes

struct Quantised
{
    uint4 bits;
    float scale;
};

// A key of which neighbouring lanes, a power of two, hold 16 numbers each: its largest is 127 units. All lanes of the warp take
// part.
template <class At>
__device__ __forceinline__ Quantised quantised(int lanes, At at)
{
    float largest = 0.0f;
#pragma unroll
    for (int j = 0; j < QUANTISED_EACH; j++) largest = fmaxf(largest, fabsf(at(j)));
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2)
        if (offset < lanes) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, offset));
    const bool counts = largest > 1e-35f;  // its inverse is a number
    const float units = counts ? 127.0f / largest : 0.0f;
    uint32_t word[QUANTISED_EACH / 4];
#pragma unroll
    for (int i = 0; i < QUANTISED_EACH / 4; i++) {
        uint32_t byte[4];
#pragma unroll
        for (int j = 0; j < 4; j++) byte[j] = uint32_t(__float2int_rn(at(4 * i + j) * units)) & 0xffu;
        word[i] = byte[0] | byte[1] << 8 | byte[2] << 16 | byte[3] << 24;
    }
    return {make_uint4(word[0], word[1], word[2], word[3]), counts ? largest / 127.0f : 0.0f};
}

// The same of a lane's numbers in memory.
__device__ __forceinline__ Quantised quantised_from(int lanes, const Real* from)
{
    Vec16<Real> part[QUANTISED_EACH / VEC];
#pragma unroll
    for (int i = 0; i < QUANTISED_EACH / VEC; i++) part[i] = load_vec(from + i * VEC);
    return quantised(lanes, [&](int j) { return to_float(part[j / VEC][j % VEC]); });
}
