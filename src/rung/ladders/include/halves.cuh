// Float32 numbers as hi + lo of 11 bits each, scaled by a power of two: the operands of three products of halves.
#pragma once
#include "rung.cuh"

// The scale in which numbers up to `largest` stay below 2^15, and the factor that brings them to it.
struct Unit
{
    float unit, factor;
    __device__ __forceinline__ explicit Unit(float largest)
    {
        const int exponent = max(__float_as_int(largest) >> 23, 15);  // the exponent, biased by 127
        unit = __int_as_float((exponent - 14) << 23);
        factor = __int_as_float((268 - exponent) << 23);
    }
};

__device__ __forceinline__ float largest_of(float4 x)
{
    return fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
}

__device__ __forceinline__ void split2(float x, float y, uint32_t& hi, uint32_t& lo)
{
    const __half2 rounded = __floats2half2_rn(x, y);
    const float2 back = __half22float2(rounded);
    memcpy(&hi, &rounded, 4);
    lo = pack2<__half>(x - back.x, y - back.y);
}

__device__ __forceinline__ void split4(float4 x, float factor, uint2& hi, uint2& lo)
{
    split2(x.x * factor, x.y * factor, hi.x, lo.x);
    split2(x.z * factor, x.w * factor, hi.y, lo.y);
}
