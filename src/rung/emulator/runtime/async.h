// Asynchronous work: mbarriers that count bytes, bulk copies, products of warp groups. It is queued, and completes at
// once, as late as its rules allow, or at a random time in between, depending on the launch's order.
#pragma once
#include "races.h"
#include "scheduler.h"

namespace rung_emulator {

// mbarrier: its 8 bytes of shared memory hold a token, which shows whether they were overwritten; the state is here.
struct ByteBarrier
{
    Place place;
    unsigned long long token;
    unsigned expected, pending;
    long bytes;      // not yet transferred in this phase
    unsigned phase;  // complete phases
    Site init;
    Clock arriving, complete;  // what a wait on this phase, or on an earlier one, synchronizes with
    unsigned agent;            // identifies copies to this barrier in the race detector
};

enum class Async : unsigned char { Copy, CopyOut, Arrive, Store, Reduce };

// A piece of memory that a copy reads or writes: in a block's shared memory, or anywhere else.
struct Span
{
    Place shared;  // block null: elsewhere
    char* global;
    unsigned bytes;
    bool fill;  // as a source: outside the tensor, reads as `value`
    unsigned value, value_bytes;
    unsigned swizzle;  // of a tensor's tile in shared memory: 0 none, 1: 32 bytes, 2: 64, 3: 128
};

struct Pending
{
    Async kind;
    Thread* thread;  // the issuing thread
    unsigned group;  // CopyOut: its thread's bulk group
    std::vector<Span> from, to;  // piece by piece
    std::vector<ByteBarrier*> barriers;  // each receives `bytes` on completion
    unsigned bytes;
    unsigned copies;  // Arrive: of the thread's cp.async
    void (*reduce)(void* to, const void* from, unsigned bytes);
    bool read, started;  // CopyOut: whether its source has been read
    std::vector<char> data;  // as read from the source
    Site site;
    const char* what;
    unsigned long serial;  // for the race detector
    unsigned agent;
};

// bytes.cpp
void init_bytes(Place place, unsigned count, Site site);
void invalidate_bytes(Place place, const char* what, Site site);
ByteBarrier& barrier_at(Place place, const char* what, Site site);
void expect_bytes(ByteBarrier& barrier, long bytes, const char* what, Site site);
unsigned arrive_bytes(ByteBarrier& barrier, unsigned count, bool release, const char* what, Site site);  // the phase before
void complete_bytes(ByteBarrier& barrier, long bytes, const char* what, Site site);
bool test_bytes(ByteBarrier& barrier, bool by_parity, unsigned phase);
void learn_bytes(ByteBarrier& barrier);
bool wait_bytes(ByteBarrier& barrier, bool by_parity, unsigned phase, const char* what, Site site);
void forget_barriers(Block& block);
void describe_bytes(const ByteBarrier& barrier, char* text, size_t room);

// async.cpp
void issue(Pending* operation);
void complete_some();   // by chance, in a shuffled order
bool complete_one();    // false: nothing is pending
void complete_all();    // at the end of the blocks that run together
void drop_pending();
void wait_copies_out(unsigned groups_left, bool reading_only);
void arrive_after_copies(ByteBarrier& barrier, bool counted, const char* what, Site site);
void end_block(Block& block);
char* memory_of(const Span& span);

// products.cpp
void end_products(Thread& thread);
void free_products(Warp& warp);

}  // namespace rung_emulator
