// Fibers: one stack each, and a switch that saves the callee-saved registers.
#pragma once
#include <stddef.h>

namespace rung_emulator {

struct Fiber
{
    void* context = nullptr;       // the saved stack pointer (or the ucontext)
    char* stack = nullptr;         // lowest usable byte; the page below it faults
    unsigned colour = 0;
};

constexpr size_t STACK_BYTES = 128 * 1024;
constexpr size_t PAGE = 4096;

// Stacks are handed out by number and kept from launch to launch.
void give_stack(Fiber& fiber, unsigned number);
// The stack whose guard page holds `address`, or -1.
long stack_overflowed(const void* address);

void start_at(Fiber& fiber, void (*entry)());
void switch_fiber(Fiber& from, Fiber& to);

}  // namespace rung_emulator
