// Linked into every program: the variables that the runtime updates, and what g++'s instrumentation calls besides the runtime's
// functions.
#include "include/rung_host/program.h"

namespace rung_emulator {
namespace now {
// In pages without anything else: each process of a launch has its own.
#define NOW __attribute__((section(".rung_now"), used))
NOW __attribute__((aligned(4096))) uint3 thread_index;
NOW uint3 block_index;
NOW dim3 block_dim, grid_dim;
NOW __attribute__((aligned(4096))) char after[4096] = {1};
}  // namespace now
static thread_local char marker;
}  // namespace rung_emulator

extern thread_local __attribute__((visibility("hidden"))) char rung_dynamic_shared[];

static const rung_emulator::Module rung_module = {
    reinterpret_cast<rung_emulator::Index*>(&rung_emulator::now::thread_index),
    reinterpret_cast<rung_emulator::Index*>(&rung_emulator::now::block_index),
    reinterpret_cast<rung_emulator::Index*>(&rung_emulator::now::block_dim),
    reinterpret_cast<rung_emulator::Index*>(&rung_emulator::now::grid_dim),
    []() -> void* { return &rung_emulator::marker; },
    []() -> void* { return rung_dynamic_shared; },
};

extern "C" void rung_program_begins(const rung_emulator::Module* own);
__attribute__((constructor(101))) static void begin() { rung_program_begins(&rung_module); }
