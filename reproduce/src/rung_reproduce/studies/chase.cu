// One thread that follows a chain of indices: each load needs the one before, so time over steps is latency.

extern "C" __global__ void chase_global(const unsigned int* next, unsigned int* last, int warm, int steps)
{
    unsigned int at = 0;
    for (int i = 0; i < warm; ++i) at = next[at];
    // The walk goes on from element 0, wherever the first one ended; the sum keeps the compiler from dropping that.
    at = at == 0xffffffffu ? 1 : 0;
    for (int i = 0; i < steps; ++i) at = next[at];
    *last = at;
}

extern "C" __global__ void chase_shared(const unsigned int* next, unsigned int* last, int count, int steps)
{
    __shared__ unsigned int chain[4096];
    for (int i = 0; i < count; ++i) chain[i] = next[i];
    unsigned int at = 0;
    for (int i = 0; i < steps; ++i) at = chain[at];
    *last = at;
}

// Each step stores the index in one word and loads it back through a pointer that the compiler cannot see through: the time of a
// step less that of a load is a store's.
extern "C" __global__ void store_global(unsigned int* cells, unsigned int* last, int warm, int steps)
{
    volatile unsigned int* cell = cells;
    unsigned int at = warm;
    for (int i = 0; i < steps; ++i) {
        cell[0] = at + 1;
        at = cell[0];
    }
    *last = at;
}

extern "C" __global__ void store_shared(unsigned int* cells, unsigned int* last, int warm, int steps)
{
    __shared__ unsigned int shared[1];
    volatile unsigned int* cell = shared;
    unsigned int at = warm;
    for (int i = 0; i < steps; ++i) {
        cell[0] = at + 1;
        at = cell[0];
    }
    *last = at + cells[0];
}
