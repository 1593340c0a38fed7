// Threads, warps and blocks of the launch under way. One operating-system thread runs them all, one fiber at a time.
#pragma once
#include "fiber.h"
#include "launch.h"

#include <stddef.h>

namespace rung_emulator {

constexpr unsigned WARP = 32;

enum class State : unsigned char { Ready, AtLanes, AtBlock, AtCluster, AtGrid, Done };

struct Copy { void* to; const void* from; int bytes; bool valid; unsigned group; const void* place; };

// Asynchronous copies that a thread has issued and not waited for.
struct Copies
{
    Copy* list = nullptr;
    unsigned count = 0, room = 0, committed = 0;
};

struct Warp;
struct Block;

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
    Copies copies;
};

struct Warp
{
    Thread* lanes[WARP];
    unsigned alive, waiting;
    Site barrier;            // the barrier at which this warp's first thread waits
    unsigned barrier_round;  // ... in this round of the block's barrier
    unsigned* clocks;        // [lane][other]: the last meeting at which `lane` knew of what `other` did
};

// A barrier of all threads of some blocks.
struct Meeting
{
    State state;
    const char* name;
    Block* blocks;
    unsigned block_count;
    unsigned arrived, alive, total, round;
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
    Meeting* cluster;
    unsigned cluster_rank;
    char* saved;  // its shared memory while another block runs
    bool finished;
    unsigned epoch;     // grows with every barrier
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
extern volatile bool meeting_lanes;    // kernel code runs on behalf of a whole warp

extern unsigned resident;     // blocks that run together
extern Meeting grid_meeting;

// blocks.cpp
void run_grid();  // returns early, with `report` filled, on a fault
inline unsigned volume(Index dim) { return dim.x * dim.y * dim.z; }

// turns.cpp
void arrange(unsigned* numbers, unsigned count, unsigned salt);  // 0, 1, 2, ... in this launch's order
void set_turns(Block& block, unsigned salt);
void rewind(Block& block);
unsigned ready_count(const Block& block);
void run_first(Block& block);  // returns when none of its threads can go on, or one leaves
void run_next();               // from a thread that waits, or lets others go first
void leave_block();            // from a thread to the caller of run_first

// meetings.cpp
void wait_as(State state, const char* what, Site site);
bool complete_lanes(Warp& warp, unsigned mask, Collective collective);
void arrive(Meeting& meeting);
void leave(Meeting& meeting);
void describe_waiting(const Block& block, char* text, size_t room);

// calls.cpp
[[noreturn]] void abandon();  // ends the launch: from a fiber, or from a signal handler on top of one
[[noreturn]] void fault(FaultKind kind, const char* format, ...) __attribute__((format(printf, 2, 3)));
void finish_copies(Thread& thread, unsigned groups_left);

}  // namespace rung_emulator
