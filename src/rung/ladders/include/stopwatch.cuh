// Where a kernel spends its cycles, as seen by one of its threads: a table of cells, one of which is always running. Only in the
// build that `rung profile` makes of a rung with [inside] in its header; in every other build these functions are empty.
#pragma once
#include "rung.cuh"

#if defined(RUNG_TIMED) && !defined(RUNG_EMULATOR)
#define RUNG_STOPWATCH 1
#endif

// The block's table is in shared memory. Each counting thread has its own rows.
template <int ROWS, int COLUMNS>
struct Stopwatch
{
#ifdef RUNG_STOPWATCH
    unsigned* cells;  // null in threads that do not count
    unsigned since;
    int cell;

    // Rows first ... last belong to this thread; cell (first, column) is running.
    __device__ __forceinline__ Stopwatch(bool counts, int first, int last, int column)
    {
        __shared__ unsigned table[ROWS * COLUMNS];
        cells = counts ? table : nullptr, cell = first * COLUMNS + column;
        for (int i = first * COLUMNS; counts && i < (last + 1) * COLUMNS; i++) table[i] = 0;
        since = clock();
    }
    __device__ __forceinline__ int running() const { return cell; }
    __device__ __forceinline__ void go_on(int with)
    {
        if (cells != nullptr) {
            const unsigned now = clock();
            asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(shared_address(cells + cell)), "r"(now - since) : "memory");
            since = now, cell = with;
        }
    }
    __device__ __forceinline__ void start(int row, int column) { go_on(row * COLUMNS + column); }
    __device__ __forceinline__ void start(int column) { go_on(cell / COLUMNS * COLUMNS + column); }

    // Adds this thread's counts to the block's table in memory, which accumulates over launches.
    __device__ __forceinline__ void stop(int* counter, int first, int last)
    {
        start(0);
        for (int i = first * COLUMNS; cells != nullptr && i < (last + 1) * COLUMNS; i++)
            counter[blockIdx.x * (ROWS * COLUMNS) + i] += int(cells[i]);
    }
#else
    __device__ __forceinline__ Stopwatch(bool, int, int, int) {}
    __device__ __forceinline__ int running() const { return 0; }
    __device__ __forceinline__ void go_on(int) const {}
    __device__ __forceinline__ void start(int, int) const {}
    __device__ __forceinline__ void start(int) const {}
    __device__ __forceinline__ void stop(int*, int, int) const {}
#endif
};
