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
