// A launch as Python describes it, and its report. Mirrored by ctypes structures in native.py.
#pragma once
#include "../include/rung_emulator/runtime.h"

namespace rung_emulator {

enum class Order : int { Forward, Reverse, Shuffled };

struct Launch
{
    const Module* module;
    void (*entry)(void** args);
    void** args;
    Index grid, block, cluster;
    unsigned dynamic_bytes;
    int cooperative;
    int dependent;  // starts before the launch ahead of it has ended
    int order;
    unsigned seed;
    int poison;      // 0: none, else the number of the pattern, from 1
    int races;       // check accesses for races; the kernel was compiled to report them
    double seconds;  // time limit without any thread ending; the launch is then stopped
    unsigned (*next)();      // null: this process runs all sets of blocks; else the number of its next one, in their order
    bool (*others_go_on)();  // ... and whether other processes' blocks, which this one's may wait for, still run
};

struct Report
{
    int fault;
    unsigned long long address;  // the faulting address, after a signal
    unsigned long long counter;  // the faulting instruction
    unsigned long long other_counter;  // the second instruction of a race
    unsigned long long waits;  // for the launch ahead
    Index block, thread;
    unsigned unwatched;  // threads at once, where they are too many for the race check that was asked for
    char text[1536];
};

}  // namespace rung_emulator
