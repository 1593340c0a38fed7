// The vector that a phase's rows are multiplied by, in shared memory.
#pragma once
#include "step_types.cuh"

namespace decode {

__device__ __forceinline__ float scaled(float sum, float scale) { return SCALED ? sum * scale : sum; }

// Half precision ends at 65504; larger values are clamped to it. NaN stays NaN.
__device__ __forceinline__ float in_half(float x)
{
    constexpr float MOST = 65504.0f;
    return x > MOST ? MOST : x < -MOST ? -MOST : x;
}
__device__ __forceinline__ float within_range(float x) { return SCALED ? in_half(x) : x; }

template <class T>
__device__ __forceinline__ T nearest(float x, const T*)
{
    return from_float<T>(x);
}
__device__ __forceinline__ float nearest(float x, const float*) { return __uint_as_float(to_tf32(x)); }

// Of the eight columns of the tensor cores a vector uses two, for its even and its odd words, and two more for its rounding
// errors, if all vectors fit at once or where rounded values are too coarse.
constexpr bool WITH_REST = TWO_TERM_TF32 || B <= 2;
constexpr int COLUMNS_OF_VECTOR = WITH_REST ? 4 : 2, COLUMN_SETS = ceil_div(B * COLUMNS_OF_VECTOR, 8);
// The rounding error of a float is recomputed wherever the vector is read, so that several rows fit.
enum : bool { ROUNDED_LATE = TWO_TERM_TF32 && B > 1 };  // a variable would become data of every kernel

// Stores four neighbouring numbers, and their rounding errors `left` elements further on, unless that is 0.
template <class T>
__device__ __forceinline__ void store4(T* to, int left, float4 x)
{
    const uint32_t a = pack2<T>(x.x, x.y), b = pack2<T>(x.z, x.w);
    *reinterpret_cast<uint2*>(to) = make_uint2(a, b);
    if (left == 0) return;
    const auto rest = [&](float v, uint32_t word, int i) {
        return v - weight_at(make_uint4(word, 0, 0, 0), i, (const T*)nullptr);
    };
    const uint32_t rest_a = pack2<T>(rest(x.x, a, 0), rest(x.y, a, 1)), rest_b = pack2<T>(rest(x.z, b, 0), rest(x.w, b, 1));
    *reinterpret_cast<uint2*>(to + left) = make_uint2(rest_a, rest_b);
}
__device__ __forceinline__ void store4(float* to, int left, float4 x)
{
    const float4 near = make_float4(nearest(x.x, to), nearest(x.y, to), nearest(x.z, to), nearest(x.w, to));
    *reinterpret_cast<float4*>(to) = ROUNDED_LATE ? x : near;
    if (left > 0) *reinterpret_cast<float4*>(to + left) = make_float4(x.x - near.x, x.y - near.y, x.z - near.z, x.w - near.w);
}

// A vector in shared memory, followed by its rounding errors if they are used. With several rows each has its own, at equal
// distances.
struct Vector
{
    Factor* numbers;
    int left;       // elements to the rounding errors; 0 if there are none
    int apart = 0;  // elements from one row's vector to the next

    __device__ __forceinline__ void set(int i, float x) const
    {
        x = within_range(x);
        const Factor near = nearest(x, (const Factor*)nullptr);
        numbers[i] = near, numbers[left + i] = from_float<Factor>(x - to_float(near));
    }
    // The same in row b, also without rounding errors.
    __device__ __forceinline__ void set(int b, int i, float x) const
    {
        if (left > 0)
            Vector{numbers + b * apart, left}.set(i, x);
        else
            numbers[b * apart + i] = ROUNDED_LATE ? from_float<Factor>(x) : nearest(within_range(x), (const Factor*)nullptr);
    }
    // Four neighbours in row b, from a multiple of four on.
    __device__ __forceinline__ void set4(int b, int i, float4 x) const
    {
        x = make_float4(within_range(x.x), within_range(x.y), within_range(x.z), within_range(x.w));
        store4(numbers + b * apart + i, left, x);
    }
};

}  // namespace decode
