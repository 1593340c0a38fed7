// How warps divide the attention of many sequences: whole heads, in chunks of cached keys.
#pragma once
#include "decode.cuh"

namespace decode {

constexpr int ITEMS = B * NH;  // heads of all sequences

// A warp's items: neighbouring blocks have neighbouring ones, and numbers of items differ by at most one.
__device__ __forceinline__ int first_item() { return warp_id() * int(gridDim.x) + int(blockIdx.x); }
__device__ __forceinline__ int item_step() { return KEY_WARPS * int(gridDim.x); }
__device__ __forceinline__ int length_of(const int* lengths, int item)
{
    return item < ITEMS ? load_fresh(lengths + item / NH) : 0;
}

// All chunks of a warp's items in sequence, up to CHUNK keys each; an item without cached keys is one empty chunk.
template <int CHUNK>
struct Chunks
{
    const int* lengths;
    int item, first, length, following;  // the next item's length is prefetched

    __device__ __forceinline__ Chunks(const int* lengths_) : lengths(lengths_), item(first_item()), first(0)
    {
        length = length_of(lengths, item), following = length_of(lengths, item + item_step());
    }
    __device__ __forceinline__ int count() const { return min(CHUNK, length - first); }
    __device__ __forceinline__ void go_on()
    {
        first += CHUNK;
        if (first < length) return;
        item += item_step(), first = 0, length = following, following = length_of(lengths, item + item_step());
    }
};

}  // namespace decode
