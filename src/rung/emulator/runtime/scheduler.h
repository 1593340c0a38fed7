// Threads, warps and blocks of the launch under way. One operating-system thread runs them all, one fiber at a time.
#pragma once
#include "fiber.h"
#include "launch.h"

#include <stddef.h>

#include <vector>

namespace rung_emulator {

// What is known to have happened before something: races.cpp.
struct Clock
{
    unsigned* row = nullptr;
};

constexpr unsigned WARP = 32;

struct Block;

// A place in the shared memory of a block.
struct Place
{
    Block* block;
    unsigned offset;  // from the first byte of the static part
};

enum class State : unsigned char { Ready, AtLanes, AtBlock, AtNamed, AtBytes, AtCluster, AtGrid, Done };

struct Copy { Place to; const void* from; int bytes, taken; unsigned group, number; const void* place; };

// Asynchronous copies that a thread has issued and not waited for.
struct Copies
{
    Copy* list = nullptr;
    unsigned count = 0, room = 0, committed = 0, issued = 0;
};

struct Warp;
struct Block;
struct ByteBarrier;

// What a thread has found where it looks again and again: while that stays the same, it waits.
struct Polls
{
    static constexpr unsigned ROOM = 64;  // more than a thread asks for in turn: a parcel of each of its neighbours, say
    unsigned used, next;                  // next: the oldest, which a new one replaces
    const void* address[ROOM];
    unsigned long long value[ROOM];
};

// Threads among which the scheduler goes round before it turns to others: a warp, or when shuffled the whole block.
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
    // where it waits, and for whom
    unsigned mask;
    Collective collective;
    void* data;
    const char* what;
    Site site;
    ByteBarrier* bytes;       // the barrier whose phase it waits for
    unsigned phase;
    unsigned cluster_round;   // in which it has arrived at the cluster's barrier and not waited yet; 0: in none
    const void* caller;       // where the kernel called the runtime for PTX
    const void* spin_place;   // where it looks again and again
    bool spinning;            // waits in a loop of its own, by polling or sleeping
    Polls polls;
    Copies copies;
    unsigned bulk_committed;  // groups of bulk copies out of shared memory
    unsigned products_committed;  // groups of wgmma
    bool products_begun;          // a wgmma.fence ever
    bool registers_ordered;       // a wgmma.fence since registers were last handed back
};

struct Warp
{
    Thread* lanes[WARP];
    unsigned alive, waiting;
    Site barrier;            // the barrier at which this warp's first thread waits
    unsigned barrier_round;  // ... in this round of the block's barrier
    struct WarpProducts* products;  // its wgmma under way
};

// A barrier of all threads of some blocks.
struct Meeting
{
    State state;
    const char* name;
    Block* blocks;
    unsigned block_count;
    unsigned arrived, alive, total, round;
    Clock clock, released;  // of those who have arrived in this round, and in the one before
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
    std::vector<ByteBarrier*>* bytes;  // those set up in its shared memory, by their place in words of 8 bytes
    Meeting* cluster;                  // null when the block is alone
    Meeting alone;                     // ... and then this
    unsigned cluster_rank;
    char* saved;  // its shared memory while another block runs; null when none ever does
    bool finished;
    struct Past* past;  // what is remembered of its shared memory
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
extern unsigned long switches;         // from thread to thread, so far
extern unsigned long ended;            // threads, so far
extern unsigned long atomics;          // read-modify-writes, so far
extern unsigned long long launches;    // so far
extern volatile bool meeting_lanes;    // kernel code runs on behalf of a whole warp

extern unsigned resident;     // blocks that run together
extern Block* blocks;         // these
extern Meeting grid_meeting;
extern unsigned long progress;  // grows whenever something has happened that a waiting thread may wait for
extern unsigned long spins;     // of progress, how often a thread was merely taken to be spinning


// blocks.cpp
void run_grid();  // returns early, with `report` filled, on a fault
void poison(void* to, size_t bytes);  // what nobody has written; the pattern changes from launch to launch
inline unsigned volume(Index dim) { return dim.x * dim.y * dim.z; }
char* memory_of(const Block& block);            // where its shared memory lies now
bool place_of(const void* address, Place& place);  // false: not in shared memory of this block or its cluster
inline char* memory_at(Place place) { return memory_of(*place.block) + place.offset; }
unsigned shared_bytes();                           // of a block: static, padding and dynamic
// Addresses as PTX has them: the block's rank in its cluster above 24 bits of offset.
unsigned address_of(Place place);
Place place_at(unsigned address, unsigned bytes, const char* what, Site site);

// turns.cpp
void arrange(unsigned* numbers, unsigned count, unsigned salt);  // 0, 1, 2, ... in this launch's order
void set_turns(Block& block, unsigned salt);
void rewind(Block& block);
unsigned ready_count(const Block& block);
void run_first(Block& block);  // returns when none of its threads can go on, or one leaves
void run_next();               // from a thread that waits, or lets others go first
void leave_block();            // from a thread to the caller of run_first
unsigned random_below(unsigned n);  // in this launch's order

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
// Those of all groups but the last, and those with a lower number.
void finish_copies(Thread& thread, unsigned groups_left, unsigned below = 0);
void copy_async(Place to, const void* from, int bytes, int taken, Site site, const void* place);
void pause(const void* place);  // lets other threads run
void poll(const void* address, unsigned long long value, const void* place);  // what a thread has found that may be waiting for another value

}  // namespace rung_emulator
