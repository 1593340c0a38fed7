// The C interface of this library, which emulator/machine.py declares again.
#pragma once
#include <stddef.h>
#include <stdint.h>

extern "C" {

struct rung_machine_launch
{
    uint32_t grid[3], block[3], cluster[3];
    uint32_t shared_bytes;  // static and dynamic
    uint32_t local_bytes;   // of each thread: its stack
    uint32_t cooperative;
    const void* bank[8];    // constant memory; bank 0 holds the parameters, the rest of it is filled here
    uint32_t bank_bytes[8];
    uint32_t parameters;    // where they begin in bank 0
    uint32_t trace_room;    // requests that are kept; a third each: stores to global memory of the first block, of others, the first's other ones
    uint32_t timed;       // whether clocks of dependent instructions are added up
    double seconds;         // of CPU time, until the launch is ended
    uint32_t prints;        // what kernels print is shown
    void* (*allocate)(size_t bytes);  // malloc and free of kernels; null if there are none
    const char* (*release)(void* memory);  // what is wrong, or null
    const struct rung_machine_region* regions;  // sorted by `from`, disjoint: all that the kernel may touch
    uint32_t region_count;  // 0: only what the system faults on is found
    uint32_t races;         // accesses that nothing orders are faults
    uint32_t unwritten;     // reads of what nothing has written are faults
    uint32_t order, seed;   // of blocks, warps and parts of warps: 0 forward, 1 reverse, 2 drawn
    uint32_t poison;        // what shared memory begins with: 0 zeros; NaN, huge numbers, negative zeros, noise from 1 to 5
};

struct rung_machine_region
{
    uint64_t from, to;  // its bytes: from <= a < to
    uint8_t* written;   // a bit for each, which stores set; null: all have been written
    uint32_t flags;     // 1: nothing may write it; 2: no launch ahead does
    uint32_t reserved;
};

struct rung_machine_fault  // the last launch's; kind 0: see its text
{
    uint32_t kind, why, memory, write;  // as judging.h numbers them
    uint64_t address;                   // in shared memory an offset
    uint32_t bytes, block[3], thread;
    int32_t other_op;                   // of a race: the access before; -1: none
    uint32_t other_write, other_block[3], other_thread;
};

// `text` has a line for each instruction: its address in hexadecimal digits, a space, the instruction with the addresses
// that it branches to in place of labels ("0010 @P0 BRA 0x1230"). Never null; see rung_machine_problem.
void* rung_machine_load(const char* text);
const char* rung_machine_problem(void* program);  // null, or the instruction that cannot be executed, and why
void rung_machine_free(void* program);

// Runs a launch; 0, or 1 with a reason in `error`, which then begins with the index of the instruction or -1 and a space.
int rung_machine_run(void* program, const rung_machine_launch* launch, char* error, uint32_t room);

void rung_machine_fault(struct rung_machine_fault* found);

// What the last launch counted. [instruction]: executions by warps; by lanes whose predicate held; by all lanes that were there.
void rung_machine_tally(void* program, uint64_t (*rows)[3]);
// A row for each instruction and memory that was touched: instruction, memory (1: shared), store, then the figures of Total
// in their order; `samples` are the worst requests: lanes, bytes of each, place within a line, how bad it is, distances from the first lane.
// Returns how many there are.
uint32_t rung_machine_memory(void* program, uint64_t (*rows)[12], int64_t (*samples)[36], uint32_t room);
// The second cache holds nothing: for the clocks of the launches that follow.
void rung_machine_cold();
// Clocks of the longest block, and of all together; zero if they were not wanted.
void rung_machine_clocks(uint64_t* both);
// The first block's events: kind, warp, bytes or products, number of the copy.
uint32_t rung_machine_events(uint32_t (*rows)[4], uint32_t room);
// Requests of the trace: instruction, block, warp, lanes, bytes of each, place (1 shared, 2 store, 4 times the swizzle), then
// the lanes' addresses; those in shared memory count from its start.
uint32_t rung_machine_trace(uint64_t (*rows)[38], uint32_t room);
}
