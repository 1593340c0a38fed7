// The interface between a compiled kernel and the runtime (runtime/*.cpp). C types only: the two are separate shared
// libraries; the runtime is compiled once, a kernel per source.
#pragma once

namespace rung_emulator {

struct Index { unsigned x, y, z; };

// A location in the kernel's source; as a default argument, the caller's.
struct Site { const char* file; int line; };
inline constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

// Called once when all lanes have arrived: data[lane] is that lane's operand, for every lane whose bit is set in `lanes`.
typedef void (*Collective)(void* const* data, unsigned lanes);

enum class Vote : int { Count, And, Or };

// A compiled kernel's variables that the runtime updates, and its entry points.
struct Module
{
    Index *thread_index, *block_index, *block_dim, *grid_dim;
    void* (*shared_base)();     // an address in the thread-local block; the call makes the loader allocate it
    void* (*dynamic_shared)();  // where `extern __shared__` arrays start
};

enum class FaultKind : int { None, Barrier, Deadlock, Bounds, Shared, Unsupported, Trap, Race, Async };

}  // namespace rung_emulator

extern "C" {
#define RUNG_API __attribute__((visibility("default")))

// The lanes of `mask` converge; the last to arrive runs `collective` over all operands.
RUNG_API void rung_meet_lanes(unsigned mask, rung_emulator::Collective collective, void* data, const char* what,
                              rung_emulator::Site site);
RUNG_API unsigned rung_lanes_running();  // lanes of this warp that are neither waiting nor ended
RUNG_API int rung_lane();

RUNG_API int rung_meet_block(int predicate, rung_emulator::Vote vote, const char* what, rung_emulator::Site site);
RUNG_API void rung_meet_grid(rung_emulator::Site site);
RUNG_API void rung_meet_cluster(rung_emulator::Site site);
RUNG_API void rung_arrive_cluster(rung_emulator::Site site);
RUNG_API void rung_wait_cluster(rung_emulator::Site site);

RUNG_API void rung_copy_async(void* to, const void* from, int bytes, bool valid, rung_emulator::Site site);
RUNG_API void rung_copy_commit();
RUNG_API void rung_copy_wait(int groups_left);

RUNG_API rung_emulator::Index rung_cluster_dim();
RUNG_API void* rung_map_shared(void* address, unsigned rank);  // the same variable in another block of the cluster
RUNG_API unsigned rung_dynamic_bytes();
RUNG_API long long rung_ticks();  // incremented by every call
RUNG_API void rung_pause();  // yields; called by spinning threads
RUNG_API void rung_poll(const void* address, unsigned long long value);  // a value read, perhaps in a polling loop
RUNG_API void rung_atomic(const void* address, unsigned long long value);  // a read-modify-write, with the old value
RUNG_API void rung_read_only(const void* address, unsigned bytes);  // a read through the read-only cache
RUNG_API unsigned long rung_atomics_ran();                                 // number of atomics in this process
RUNG_API unsigned rung_shared_address(const void* address, rung_emulator::Site site);  // as a PTX shared address
RUNG_API void* rung_shared_pointer(unsigned address, rung_emulator::Site site);
[[noreturn]] RUNG_API void rung_fault(rung_emulator::FaultKind kind, rung_emulator::Site site, const char* text);
[[noreturn]] RUNG_API void rung_fault_at(rung_emulator::FaultKind kind, const void* caller, const char* text);
}
