// In place of the warp functions, where a mask may leave out lanes that call: machine code has no masks, since the
// hardware runs the lanes that are there. A lane must be in the mask that it passes, and so must the lane that it
// reads. __syncwarp is left as it is: a test before it would bring lanes together that its mask leaves apart, and so
// hide races.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, decltype(sizeof 0));

namespace gpuless_masks {
__device__ __forceinline__ int lane()
{
    int number;
    asm("mov.u32 %0, %%laneid;" : "=r"(number));
    return number;
}

__device__ __forceinline__ unsigned of(unsigned mask)
{
    if (!(mask >> lane() & 1)) __assertfail("a lane calls a warp function whose mask leaves it out", "", 0, "", 1);
    return mask;
}

__device__ __forceinline__ unsigned of(unsigned mask, int from, int width)  // which is the lane itself beyond a segment
{
    const int first = lane() & ~(width - 1);
    if (from >= first && from < first + width && !(mask >> from & 1))
        __assertfail("a shuffle reads a lane that its mask leaves out", "", 0, "", 1);
    return of(mask);
}

template <class T>
__device__ __forceinline__ T shfl(unsigned mask, T x, int from, int width = 32)
{
    const int place = from & (width - 1);
    return __shfl_sync(of(mask, (lane() & ~(width - 1)) + place, width), x, from, width);
}

template <class T>
__device__ __forceinline__ T shfl_up(unsigned mask, T x, unsigned by, int width = 32)
{ return __shfl_up_sync(of(mask, lane() - int(by), width), x, by, width); }

template <class T>
__device__ __forceinline__ T shfl_down(unsigned mask, T x, unsigned by, int width = 32)
{ return __shfl_down_sync(of(mask, lane() + int(by), width), x, by, width); }

template <class T>
__device__ __forceinline__ T shfl_xor(unsigned mask, T x, int by, int width = 32)
{ return __shfl_xor_sync(of(mask, lane() ^ by, width), x, by, width); }
}  // namespace gpuless_masks

#define __shfl_sync gpuless_masks::shfl
#define __shfl_up_sync gpuless_masks::shfl_up
#define __shfl_down_sync gpuless_masks::shfl_down
#define __shfl_xor_sync gpuless_masks::shfl_xor
#define __any_sync(mask, ...) __any_sync(gpuless_masks::of(mask), __VA_ARGS__)
#define __all_sync(mask, ...) __all_sync(gpuless_masks::of(mask), __VA_ARGS__)
#define __ballot_sync(mask, ...) __ballot_sync(gpuless_masks::of(mask), __VA_ARGS__)
#define __match_any_sync(mask, ...) __match_any_sync(gpuless_masks::of(mask), __VA_ARGS__)
#define __match_all_sync(mask, ...) __match_all_sync(gpuless_masks::of(mask), __VA_ARGS__)
#define __reduce_add_sync(mask, ...) __reduce_add_sync(gpuless_masks::of(mask), __VA_ARGS__)
#define __reduce_min_sync(mask, ...) __reduce_min_sync(gpuless_masks::of(mask), __VA_ARGS__)
#define __reduce_max_sync(mask, ...) __reduce_max_sync(gpuless_masks::of(mask), __VA_ARGS__)
#define __reduce_and_sync(mask, ...) __reduce_and_sync(gpuless_masks::of(mask), __VA_ARGS__)
#define __reduce_or_sync(mask, ...) __reduce_or_sync(gpuless_masks::of(mask), __VA_ARGS__)
#define __reduce_xor_sync(mask, ...) __reduce_xor_sync(gpuless_masks::of(mask), __VA_ARGS__)
