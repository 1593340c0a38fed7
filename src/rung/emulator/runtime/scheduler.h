// Threads, warps and blocks of the current launch. One operating-system thread runs them all, one fiber at a time.
#pragma once
#include "fiber.h"
#include "launch.h"

#include <stddef.h>

#include <vector>

namespace rung_emulator {

// A vector clock: what happened before an event (races.cpp).
struct Clock
{
    unsigned* row = nullptr;
};

constexpr unsigned WARP = 32;

struct Block;

// A location in a block's shared memory.
struct Place
{
    Block* block;
    unsigned offset;  // from the first byte of the static part
};

enum class State : unsigned char { Ready, AtLanes, AtBlock, AtNamed, AtBytes, AtCluster, AtGrid, Done };

struct Copy { Place to; const void* from; int bytes, taken; unsigned group, number; const void* place; };

// A thread's asynchronous copies that it has not waited for.
struct Copies
{
    Copy* list = nullptr;
    unsigned count = 0, room = 0, committed = 0, issued = 0;
};

struct Warp;
struct Block;
struct ByteBarrier;

// Values that a thread has polled. As long as none of them changes, the thread is waiting.
struct Polls
{
    static constexpr unsigned ROOM = 64;  // more than a thread polls in one loop, such as one parcel from each neighbour
    unsigned used, next;                  // next: the oldest entry, replaced next
    const void* address[ROOM];
    unsigned long long value[ROOM];
};

constexpr unsigned STATES = 16;

// Threads that the scheduler runs round robin before it goes on to others: a warp, or the whole block when shuffled.
struct Turn
{
    struct Thread** members;
    unsigned count, ready, at;
};

struct Thread : Fiber
{
    State state;
    unsigned lane, rank;
    Index index;
    Warp* warp;
    Turn* turn;
    Block* block;
    // what it waits for
    unsigned mask;
    Collective collective;
    void* data;
    const char* what;
    Site site;
    ByteBarrier* bytes;       // the barrier whose phase it waits for
    unsigned phase;
    unsigned cluster_round;   // of the cluster's barrier: arrived, not yet waited; 0: none
    const void* caller;       // where the kernel called the runtime for PTX
    const void* spin_place;   // the instruction that polls
    bool spinning;            // waits in a loop by polling or sleeping
    unsigned repeats;         // how often in turn it was found in one of these states, with no event between
    unsigned next_state;
    unsigned long events;
    unsigned long long states[STATES];
    Polls polls;
    Copies copies;
    unsigned bulk_committed;  // groups of bulk copies out of shared memory
    unsigned products_committed;  // groups of wgmma
    bool timed_out;           // one of its try_waits has
    bool of_block;            // its atomics are those of the block's scope
    bool products_begun;          // whether it has executed a wgmma.fence
    bool registers_ordered;       // whether it has executed one since wgmma last wrote registers
};

struct Warp
{
    Thread* lanes[WARP];
    unsigned alive, waiting;
    Site barrier;            // the barrier at which this warp's first thread waits
    unsigned barrier_round;  // ... in this round of the block's barrier
    unsigned registers;      // per thread, as setmaxnreg last set them; 0: never
    struct WarpProducts* products;  // its pending wgmma
};

// A barrier of all threads of some blocks.
struct Meeting
{
    State state;
    const char* name;
    Block* blocks;
    unsigned block_count;
    unsigned arrived, alive, total, round;
    Clock clock, released;  // of the arrivals in this round and in the one before
};

// bar.sync id, count
struct Named
{
    unsigned expected, arrived, round;
    Clock clock;
};

struct Block
{
    Index index;
    Thread* threads;
    Thread** listed;  // in scheduling order
    Warp* warps;
    Turn* turns;
    unsigned thread_count, warp_count, turn_count, turn_at;
    unsigned alive, pauses;
    int count, all, any;              // votes so far
    int count_result, all_result, any_result;
    Meeting barrier;
    Named named[16];
    std::vector<ByteBarrier*>* bytes;  // initialized in its shared memory, by offset / 8
    Meeting* cluster;                  // null without a cluster
    Meeting alone;                     // used in that case
    unsigned cluster_rank;
    char* saved;  // copy of its shared memory while another block runs; null if none ever does
    bool finished;
    struct Past* past;  // access history of its shared memory
};

struct SharedMemory
{
    char* fixed;  // static part
    size_t fixed_bytes;
    char* dynamic;  // null when the source declares none
    size_t dynamic_bytes;
};

extern Launch const* launch;
extern Report* report;
extern Thread* running;  // null while the scheduler itself runs
extern SharedMemory shared;
extern const char *code, *code_end;  // the kernel's library in memory
extern unsigned long switches;         // number of fiber switches
extern unsigned long ended;            // number of threads that have ended
extern unsigned long atomics;          // number of read-modify-writes
extern unsigned long long launches;    // number of launches
extern volatile bool meeting_lanes;    // kernel code is running for a whole warp

extern unsigned resident;     // number of co-resident blocks
extern Block* blocks;         // the co-resident blocks
extern Meeting grid_meeting;
extern unsigned long progress;  // incremented by every event that a thread may wait for
extern unsigned long spins;     // increments of progress because a thread was assumed to be spinning

// blocks.cpp
void run_grid();  // returns early, with `report` filled, on a fault
void poison(void* to, size_t bytes);  // fills unwritten memory; the pattern changes from launch to launch
inline unsigned volume(Index dim) { return dim.x * dim.y * dim.z; }
char* memory_of(const Block& block);            // current location of its shared memory
bool others_started(const Block& block);           // the blocks of its cluster: whether a barrier of all has completed
bool place_of(const void* address, Place& place);  // false: not in shared memory of this block or its cluster
inline char* memory_at(Place place) { return memory_of(*place.block) + place.offset; }
unsigned shared_bytes();                           // per block: static, padding and dynamic
// Addresses as PTX has them: the block's rank in its cluster above 24 bits of offset.
unsigned address_of(Place place);
Place place_at(unsigned address, unsigned bytes, const char* what, Site site);

// entry.cpp
extern volatile bool overdue;  // the running thread has run for long, and yields at the next call of the runtime that can
void yield_at_call(const void* place);

// turns.cpp
void arrange(unsigned* numbers, unsigned count, unsigned salt);  // 0, 1, 2, ... in this launch's order
void set_turns(Block& block, unsigned salt);
void rewind(Block& block);
unsigned ready_count(const Block& block);
void run_first(Block& block);  // returns when none of its threads can continue, or one leaves
void run_next();               // called by a thread that waits or yields
void leave_block();            // returns from a thread to the caller of run_first
unsigned random_below(unsigned n);  // pseudorandom, by the launch's seed

// meetings.cpp
void wait_as(State state, const char* what, Site site);
bool complete_lanes(Warp& warp, unsigned mask, Collective collective);
void arrive(Meeting& meeting);
void leave(Meeting& meeting);
void wake(Thread& thread);
void meet_named(unsigned id, unsigned count, bool wait, const char* what, Site site);
void arrive_cluster(bool release, Site site);
void wait_cluster(bool acquire, Site site);
void describe_waiting(const Block& block, char* text, size_t room);
void describe_all(char* text, size_t room);

// calls.cpp
[[noreturn]] void abandon();  // ends the launch: from a fiber, or from a signal handler on top of one
[[noreturn]] void fault(FaultKind kind, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Completes all groups but the last `groups_left`, and copies with a number below `below`.
void finish_copies(Thread& thread, unsigned groups_left, unsigned below = 0);
void copy_async(Place to, const void* from, int bytes, int taken, Site site, const void* place);
void pause(const void* place);  // yields to other threads
void poll(const void* address, unsigned long long value, const void* place);  // records a value that the thread may be polling

}  // namespace rung_emulator
