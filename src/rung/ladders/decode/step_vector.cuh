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
            numbers[b * apart + i] = nearest(within_range(x), (const Factor*)nullptr);
    }
};

}  // namespace decode
