// The race detector: finds two accesses to the same memory, at least one a write, that no barrier, fence or wait orders.
#pragma once
#include "scheduler.h"

namespace rung_emulator {

struct Pending;

extern bool watching;  // accesses are checked; the kernel was compiled to report them
extern unsigned repeats;  // stores of a warp's lanes to one address whose values are to be compared

// ---- called by the scheduler ----------------------------------------------------------------------------------------
void watch(bool on);                // at the start of a launch
void watch_set(unsigned number);    // before co-resident blocks start
void compare_repeats();             // before another thread runs
void forget_shared(Block& block);   // new shared memory
void unwatch();                     // at the end of a launch
Index block_of_set(unsigned set, unsigned number);  // blocks.cpp: the block that was number `number` of that set

// ---- synchronization ------------------------------------------------------------------------------------------------
void order_blocks(const Meeting& meeting);     // a barrier of all threads of these blocks
void order_lanes(Warp& warp, unsigned lanes);  // a __syncwarp
void publish(Clock& to);                       // releases the running thread's clock to `to`
void publish_of(const Thread& thread, Clock& to);
void learn(const Clock& from);
void learn_as(const Thread& thread, const Clock& from);
void hand_over(Clock& from, Clock& to);        // moves `from` to `to`
void empty(Clock& clock);
enum class Scope : unsigned char { Block, Cluster, Gpu };
inline unsigned char strength(Scope scope) { return (unsigned char)(unsigned(scope) + 1); }  // of an atomic access
void fence(Scope widest);                      // __threadfence, fence.acq_rel
void fence_proxy();                            // fence.proxy.async
enum class Memory { Relaxed, Acquire, Release, AcquireRelease };
void synchronize(const void* address, bool load, bool store, Memory order, Scope widest);  // through an atomic or strong access

// ---- accesses -------------------------------------------------------------------------------------------------------
void note_access(const void* address, size_t bytes, bool write, unsigned char strong, const void* place);
void read_only(const void* address, size_t bytes, const void* place);  // refuses what this launch has written
void note_copy(const Thread& thread, Place to, int bytes, const void* place);
void note_barrier(Place place);

// ---- copy engine and tensor cores: agents with numbered operations ------------------------------------------------------
unsigned agent_of_barrier(unsigned number);
unsigned agent_of_warp(const Warp& warp);
void note_operation(Pending& operation);
void note_operand(const Thread& issuer, Place from, unsigned bytes, unsigned agent, unsigned long serial);  // read by an agent
unsigned writing_agent(const Pending& operation);
void agent_done(unsigned agent, unsigned long serial, Clock& to);
void agent_known(unsigned agent, unsigned long serial);  // to the running thread
void launch_ahead_known();                               // to the running thread, which has waited for it
void let_dependents_start();                             // the next launch may start, as far as the running thread is concerned

}  // namespace rung_emulator
