// The vector that a phase's rows are multiplied with, in shared memory.
#pragma once
#include "step_types.cuh"

namespace decode {

__device__ __forceinline__ float scaled(float sum, float scale) { return SCALED ? sum * scale : sum; }

// Half precision ends at 65504; what would lie beyond stays finite. What is no number stays none.
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

// A vector in shared memory, and behind it what was left when its numbers were rounded, if that is wanted.
struct Vector
{
    Factor* numbers;
    int left;  // numbers to what was left; 0 if there is nothing

    __device__ __forceinline__ void set(int i, float x) const
    {
        x = within_range(x);
        const Factor near = nearest(x, (const Factor*)nullptr);
        numbers[i] = near, numbers[left + i] = from_float<Factor>(x - to_float(near));
    }
};

}  // namespace decode
