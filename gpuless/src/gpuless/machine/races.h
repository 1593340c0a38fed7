// Which accesses a launch orders. A warp has a clock, which counts its releases, and knows for every other warp of its
// cluster the last count that is ordered before it; what it knows of other blocks came through atomics. races.cpp has
// the rules.
#pragma once
#include <stdint.h>

#include <unordered_map>
#include <vector>

#include "cells.h"

namespace rung_machine {

struct Warp;
struct Block;
struct BytesBarrier;
struct Op;

// Of each warp and each agent of a cluster, by its index; what fences have shown to the copy engine, too. An agent
// stands for asynchronous work: a warp's copies by cp.async, its copies out of shared memory, its products, and what a
// byte barrier awaits.
struct Clock
{
    std::vector<uint32_t> own, proxied;
    std::unordered_map<uint64_t, uint32_t> others;  // of other clusters: (number << 16) + index
    bool waited = false;                            // for the launch ahead
    bool any = false;
};

enum Scope : unsigned { OF_BLOCK, OF_CLUSTER, OF_GPU, SCOPES };
enum class Agent { Copy, Out, Product };

struct Order  // of a warp
{
    Clock known, released[SCOPES],
        pending[SCOPES];  // what a fence covers; what atomics have read, and a fence acquires
    Clock ticket;         // of `pending`, what read-modify-writes have read, which a barrier of the block acquires
    uint32_t tick = 1, met = 0;                  // counts the meetings of its lanes; the last at which all were
    std::vector<uint32_t> meetings;              // [lane][lane]: the last one of both, if some met apart
    uint32_t copies = 1, out = 1, products = 1;  // groups that are being filled
    uint32_t reading = 0, reader = 0;            // the newest group of copies out of shared memory, and its instruction
    uint16_t index = 0;
};

void begin_races();  // before a launch
void begin_order(Warp& w, unsigned index);

// Accesses: of lanes (addresses in shared memory count from its start; `strong` is 0, or a scope and 1; the data of a
// store, by words that lie `step` apart); of asynchronous work that a lane begins.
void look(Warp& w, const Op& op, uint32_t lanes, const uint64_t* at, unsigned bytes, Block* shared, bool write,
          unsigned strong, const uint32_t* data = nullptr, unsigned step = 0);
// Plain accesses of a whole warp: each lane's lies `apart` bytes behind the one before it (0: all are at one place).
void look_at_span(Warp& w, const Op& op, uint64_t first, unsigned apart, Block* shared, bool write,
                  const uint32_t* data = nullptr, unsigned step = 0);
void look_as(Warp& w, const Op& op, Agent agent, uint64_t at, unsigned bytes, Block* shared, bool write,
             unsigned lane = 0);
void look_as_barrier(Warp& w, const Op& op, const BytesBarrier& b, uint64_t at, unsigned bytes, Block* shared,
                     bool write, unsigned lane = 0);
void look_at_end(Warp& w, const Op& op);  // of a warp: its copies out of shared memory have read it
uint16_t new_agent(Block& block);

// What orders them.
void meet(Warp& w, uint32_t lanes);
void release_to(Warp& w, Clock& clock);
void acquire_from(Warp& w, const Clock& clock);
void step(Warp& w);  // what follows is not part of what was released
void fence(Warp& w, Scope scope);
void acquire_pending(Warp& w, Scope widest);
void acquire_ticket(Warp& w);                                                       // where it arrives at a barrier
void publish(Warp& w, uint64_t address, unsigned strong, bool reads, bool writes);  // a strong access or an atomic
void fence_proxy(Warp& w);
void close_group_of(Warp& w, Agent agent);
void wait_for_group_of(Warp& w, Agent agent, unsigned left);
void release_copies_to(Warp& w, Clock& clock);
void complete_phase(BytesBarrier& b);
void each_touched(void (*take)(void*, uint64_t, uint32_t, uint32_t, uint32_t), void* to);
void wait_for_launch_ahead(Warp& w);
void let_next_start(Warp& w);

}  // namespace rung_machine
