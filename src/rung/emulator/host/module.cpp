// Linked into every program: the variables that the runtime updates, and what g++'s instrumentation calls besides the runtime's
// functions.
#include "include/rung_host/program.h"

namespace rung_emulator {
static thread_local char marker;
}  // namespace rung_emulator

// The indices fill a page alone: each process of a launch has its own.
extern "C" { alignas(4096) __attribute__((visibility("hidden"), used)) char rung_now[4096] = {}; }
static_assert(sizeof(uint3) == 12 && sizeof(dim3) == 12, "");
#define PLACE(name, offset) ".globl " name "\n.hidden " name "\n.set " name ", rung_now + " offset "\n"
asm(PLACE("_ZN13rung_emulator3now12thread_indexE", "0") PLACE("_ZN13rung_emulator3now11block_indexE", "12")
    PLACE("_ZN13rung_emulator3now9block_dimE", "24") PLACE("_ZN13rung_emulator3now8grid_dimE", "36"));

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

// malloc and new of the program's own code, in kernels; executable.py has the linker wrap these names.
extern "C" bool rung_in_kernel();
extern "C" __attribute__((weak)) void* rung_heap_malloc(size_t);
extern "C" __attribute__((weak)) void rung_heap_free(void*, const void*);
#define WRAP_NEW(name) \
    void* __real_##name(size_t); \
    void* __wrap_##name(size_t bytes) { return rung_in_kernel() ? rung_heap_malloc(bytes) : __real_##name(bytes); }
#define WRAP_DELETE(name, MORE, more) \
    void __real_##name(void* MORE); \
    void __wrap_##name(void* pointer MORE) { rung_in_kernel() ? rung_heap_free(pointer, __builtin_return_address(0)) : __real_##name(pointer more); }
#define SIZE , size_t size
#define GIVEN , size
extern "C" {
WRAP_NEW(malloc) WRAP_NEW(_Znwm) WRAP_NEW(_Znam)
WRAP_DELETE(free, , ) WRAP_DELETE(_ZdlPv, , ) WRAP_DELETE(_ZdaPv, , ) WRAP_DELETE(_ZdlPvm, SIZE, GIVEN) WRAP_DELETE(_ZdaPvm, SIZE, GIVEN)
}
