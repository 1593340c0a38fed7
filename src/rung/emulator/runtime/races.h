// Finds two accesses to the same shared memory, one of them a write, with no barrier between them.
#pragma once
#include "scheduler.h"

namespace rung_emulator {

// What is remembered of two bytes of shared memory: the last write, and two threads that have read since a barrier.
struct Past
{
    unsigned write_epoch, read_epoch;  // of the block's barriers; others are forgotten
    unsigned short writer, reader, other_reader;
    bool write_atomic, read_atomic;
    unsigned write_clock, read_clock, other_read_clock;
    unsigned write_place, read_place, other_read_place;  // of the instruction, from the start of the kernel's code
};

void watch_shared(bool on);         // at the start of a launch
void watch_block(Block& block);     // before a block runs
void forget(Block& block);          // a barrier of the whole block
void order_lanes(Warp& warp, unsigned lanes);  // a __syncwarp
void note_copy(const void* to, int bytes, const void* place);

}  // namespace rung_emulator
