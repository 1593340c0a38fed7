// What a compiled kernel and the runtime (runtime/*.cpp) know of each other. C types only: the two are separate shared
// libraries, the runtime compiled once, a kernel for each source.
#pragma once

namespace rung_emulator {

struct Index { unsigned x, y, z; };

// A place in the kernel's source; as a default argument it is the caller's.
struct Site { const char* file; int line; };
inline constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

// Called once for a whole rendezvous: data[lane] is what that lane brought, for every lane whose bit is set in `lanes`.
typedef void (*Collective)(void* const* data, unsigned lanes);

enum class Vote : int { Count, And, Or };

// The variables of a compiled kernel that the runtime keeps up to date, and its entry points.
struct Module
{
    Index *thread_index, *block_index, *block_dim, *grid_dim;
    void* (*shared_base)();     // any address in the thread-local block, which makes the loader allocate it
    void* (*dynamic_shared)();  // where `extern __shared__` arrays start
};

enum class FaultKind : int { None, Barrier, Deadlock, Bounds, Shared, Unsupported, Trap, Race, Async };

}  // namespace rung_emulator

extern "C" {
#define RUNG_API __attribute__((visibility("default")))

// The lanes of `mask` meet; the last to come runs `collective` over what all brought.
RUNG_API void rung_meet_lanes(unsigned mask, rung_emulator::Collective collective, void* data, const char* what,
                              rung_emulator::Site site);
RUNG_API unsigned rung_lanes_running();  // lanes of this warp that wait nowhere and have not ended
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
RUNG_API long long rung_ticks();  // grows at every look
RUNG_API void rung_pause();  // lets other threads run: spinning threads call it
RUNG_API void rung_poll(const void* address, unsigned long long value);  // found there, perhaps in a loop
RUNG_API void rung_atomic(const void* address, unsigned long long value);  // a read-modify-write that has found this
RUNG_API unsigned long rung_atomics_ran();                                 // in this process
RUNG_API unsigned rung_shared_address(const void* address, rung_emulator::Site site);  // as PTX has it
RUNG_API void* rung_shared_pointer(unsigned address, rung_emulator::Site site);
[[noreturn]] RUNG_API void rung_fault(rung_emulator::FaultKind kind, rung_emulator::Site site, const char* text);
}
