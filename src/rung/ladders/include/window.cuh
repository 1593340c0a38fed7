// The keys that a query sees with a window: the last `window` up to its own, and the first `globals` of the text.
#pragma once

struct Seen
{
    int globals, begin, count;  // global keys before the window; the window's start; the number of keys in all
    __device__ Seen(int query, int window, int first)
    {
        begin = max(0, query - window + 1);
        globals = min(first, begin);
        count = globals + query + 1 - begin;
    }
    __device__ int key(int i) const { return i < globals ? i : begin + i - globals; }
};
