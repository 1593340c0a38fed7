// What Python hands to the runtime for one launch, and what it gets back. Mirrored by ctypes structures in native.py.
#pragma once
#include "../include/rung_emulator/runtime.h"

namespace rung_emulator {

enum class Order : int { Forward, Reverse, Shuffled };

struct Launch
{
    const Module* module;
    void (*entry)(void** args);
    void** args;
    const char* kernel;
    Index grid, block, cluster;
    unsigned dynamic_bytes;
    int cooperative;
    int order;
    unsigned seed;
    int poison;      // 0: none, else the number of the pattern, from 1
    int races;       // the kernel was compiled to tell its accesses, and they are to be checked
    double seconds;  // without any thread that ends: the launch is then stopped
};

struct Report
{
    int fault;
    int signal;
    unsigned long long address;  // that could not be touched, when a signal came
    unsigned long long counter;  // the instruction that tried
    unsigned long long other_counter;  // and the other one of a race, by
    Index block, thread, other;
    char text[1536];
};

}  // namespace rung_emulator
