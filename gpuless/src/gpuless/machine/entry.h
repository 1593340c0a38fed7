// The C interface of this library, which emulator/machine.py declares again.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "fault.h"

extern "C" {

struct rung_machine_region;
typedef const void* rung_bytes;
typedef void* (*rung_allocate)(size_t bytes);
typedef const char* (*rung_release)(void* memory);  // what is wrong, or null
typedef const struct rung_machine_region* rung_regions;
typedef const uint32_t* rung_units;
typedef void (*rung_progress)(uint64_t ended, uint64_t all);
typedef void (*rung_race)(const struct rung_machine_fault*);
typedef void (*rung_error)(const struct rung_machine_error*);

struct rung_machine_launch
{
#define FIELD(type, name) type name;
#define ARRAY(type, name, count) type name[count];
#include "launch.def"
#undef FIELD
#undef ARRAY
};

struct rung_machine_region
{
    uint64_t from, to;
    uint32_t flags;  // 1: nothing may write it; 2: and no launch ahead writes it
};

struct rung_machine_error  // of a stored number
{
    rung_where at;
    double value, exact, relative;
    const char* arose;  // FILE:LINE; empty if that is not known
};

// `text` has a line for each instruction: its address in hexadecimal digits, a space, the instruction with the
// addresses that it branches to in place of labels ("0010 @P0 BRA 0x1230"). Never null; see rung_machine_problem.
void* rung_machine_load(const char* text);
const char* rung_machine_problem(void* program);  // null, or the instruction that cannot be executed, and why
void rung_machine_free(void* program);

// The kernel's name, and a line for each instruction with its place in the source, or an empty one.
void rung_machine_name(void* program, const char* kernel, const char* places);

// Runs a launch; 0, or 1 with what went wrong.
int rung_machine_run(void* program, const rung_machine_launch* launch, struct rung_machine_fault* fault);

// The first read, in the last launch, of what nothing has written, in a memory (a rung_space); whether there was any.
int rung_machine_unwritten(uint32_t space, struct rung_machine_fault* found);

uint64_t rung_machine_steps();  // instructions of warps that the last launch has executed

// Of each line of 128 bytes of global memory that the last launch, `followed`, touched: the words that it read, wrote,
// and those of both that it did not touch by atomics or strong accesses alone.
void rung_machine_touched(void (*take)(void* to, uint64_t line, uint32_t read, uint32_t written, uint32_t plain),
                          void* to);

// A fault in a sentence; `operand` is what lies at its address.
void rung_machine_sentence(void* program, const struct rung_machine_fault* fault, const uint32_t* block,
                           const char* operand, char* out, uint32_t room);

// What the last launch counted. [instruction]: executions by warps, and by lanes whose predicate held.
void rung_machine_tally(void* program, uint64_t (*rows)[2]);
// A row for each instruction and memory that was touched: instruction, memory (1: shared), store, then the figures of
// Total in their order; `samples` are the worst requests: lanes, bytes of each, place within a line, how bad it is,
// distances from the first lane. Returns how many there are.
uint32_t rung_machine_memory(void* program, uint64_t (*rows)[12], int64_t (*samples)[36], uint32_t room);
// Runs the blocks that stand for the grid, or all if those wait for others, and simulates them on an SM
// (timing.h), called with so many sets of operands in turn: its clocks for its share of the grid, and of each
// instruction clocks of warps by the reason why they did not issue. 0, or 1 with what went wrong.
struct rung_machine_prediction
{
    double clocks;
    double atomic_clocks;         // of the memory that is busiest with atomics
    uint32_t resident, together;  // blocks at once; blocks wait for each other, and how long is not modelled
    uint32_t swaps;  // that memory takes compare-and-swaps, which are tried again, and how often is not modelled
};
int rung_machine_predict(void* program, const struct rung_machine_launch* launch, const double* constants,
                         uint32_t resident, double shared_bytes, double sets, struct rung_machine_prediction* made,
                         double (*stalls)[12], struct rung_machine_fault* fault);
// L2 holds nothing: for the prediction of the launches that follow.
void rung_machine_cold();
// How faithfully this process' launches were executed so far, as JSON: instructions of warps that are exact; by table,
// and approximate, those of each name; names that are refused. Null: forgotten, in a
// child of fork.
void rung_machine_fidelity(char* out, uint32_t room);
// The first block's events: kind, warp, bytes or products, number of the copy.
uint32_t rung_machine_events(uint32_t (*rows)[4], uint32_t room);
// Requests of the trace: instruction, block, warp, lanes, bytes of each, place (1 shared, 2 store, 4 times the
// swizzle), then the lanes' addresses; those in shared memory count from its start.
uint32_t rung_machine_trace(uint64_t (*rows)[38], uint32_t room);
}
