// Weights, and cached keys and values, directly from memory: a load is issued when its product begins.
#pragma once
#include "step_types.cuh"

namespace decode {

constexpr int COPY_WARPS = 0;     // all warps compute
constexpr int STAGED_PIECES = 0;  // of 16 bytes, in shared memory

struct WeightSource
{
    Watch watch;

    __device__ __forceinline__ WeightSource(uint4*, const Watch& stopwatch) : watch(stopwatch) {}
    __device__ __forceinline__ void set_up(bool) {}
    __device__ __forceinline__ void await(int = 0) {}
    __device__ __forceinline__ void release(int) {}

    __device__ __forceinline__ const Real* gain(const Weights& w) const { return w.gain; }
    __device__ __forceinline__ const Real* shift(const Weights& w) const { return w.shift; }
    __device__ __forceinline__ const Real* bias(const Weights& w) const { return w.bias; }

    // The start of part `part` of a row, and the 16 bytes there.
    __device__ __forceinline__ const char* row(const Weights& w, int first, int part, int, int row) const
    {
        return reinterpret_cast<const char*>(w.row(first + row, part));
    }
    static __device__ __forceinline__ uint4 piece(const char* at) { return load_no_allocate(reinterpret_cast<const uint4*>(at)); }
    // 16 bytes of a key, or of a value, from the cache's group that begins at `keys`.
    __device__ __forceinline__ uint4 key_piece(const Real* keys, int key, int, int lane) const
    {
        return __ldcg(reinterpret_cast<const uint4*>(keys + size_t(key) * HS) + lane);
    }
};

__device__ __forceinline__ void sync_computing() { __syncthreads(); }

}  // namespace decode
