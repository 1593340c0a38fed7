// Which accesses a launch orders. A warp has a clock, which counts its releases, and knows for every other warp of its
// cluster the last count that is ordered before it; what it knows of other blocks came through atomics. races.cpp has
// the rules.
#pragma once
#include <stdint.h>

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cells.h"

namespace rung_machine {

struct Warp;
struct Block;
struct BytesBarrier;
struct NamedBarrier;
struct Op;
struct Pattern;

// The last count of each warp and each agent of a cluster that is ordered before somebody, by its index: for all of its
// lanes, and for some beyond that. An agent stands for asynchronous work: a warp's copies by cp.async, its copies out
// of shared memory, its products, and what a byte barrier awaits.
struct Times
{
    std::vector<uint32_t> of;
    std::unordered_map<uint32_t, uint32_t> lanes;  // by the index times 32, and the lane
    void forget(uint32_t index)
    {
        if (!lanes.empty())
            for (uint32_t l = 0; l < 32; l++) lanes.erase(index * 32 + l);
    }
};

struct Clock
{
    Times own, proxied, reads;  // `proxied`: what fences have shown to the copy engine; `reads`: of reads alone
    std::unordered_map<uint64_t, uint32_t> others;  // of other clusters (foreign)
    bool waited = false;                            // for the launch ahead
    bool any = false;
};

// The key of another cluster's lane, or of all of its warp's (32).
constexpr uint64_t foreign(uint32_t unit, uint32_t index, uint32_t lane)
{ return uint64_t(unit) << 32 | index << 8 | lane; }

enum Scope : unsigned { OF_BLOCK, OF_CLUSTER, OF_GPU, SCOPES };
enum class Agent { Copy, Out, Product };

struct Pending  // what atomics and strong loads of these lanes have read, until a fence acquires it
{
    uint32_t lanes;
    Clock clock;
};

struct Released  // what a fence has covered: what its lane knew, and its own past up to this count
{
    std::shared_ptr<const Clock> clock;
    uint32_t time = 0;
};

struct Order  // of a warp
{
    Clock known;                               // by all of its lanes
    std::unique_ptr<Clock> beyond[32];         // by one of them
    uint32_t apart = 0;                        // lanes that know something beyond
    std::unique_ptr<Released[][32]> released;  // by scope and lane; null: nothing
    std::vector<Pending> pending[SCOPES],
        ticket;                    // `ticket`: of read-modify-writes, which a barrier of the block acquires
    uint32_t count = 1, met = 0;   // counts releases and meetings of its lanes; the last at which all were
    std::vector<uint32_t> met_at;  // [lane][lane]: the last one of both, if some met apart
    std::array<std::array<uint32_t, 32>, 3> group = {};  // by agent and lane: how many groups have been closed
    uint32_t voted[32];  // by lane: those with which it has chosen the one that executes an atomic for all
    std::array<std::array<uint32_t, 32>, 2> waited = {};  // by agent and lane: groups of its own copies
    uint32_t waits_apart = 0;                             // lanes that have waited beyond what all know
    Access reading = {};                                  // the newest copy out of shared memory
    uint16_t index = 0;
    Clock& beyond_of(unsigned lane);
};

void begin_races();  // before a launch
void begin_order(Warp& w, unsigned index);

// Accesses: of lanes (addresses in shared memory count from its start; `strong` is 0, or a scope and 1; the data of a
// store, by words that lie `step` apart); of asynchronous work that a lane begins.
void look(Warp& w, const Op& op, uint32_t lanes, const uint64_t* at, unsigned bytes, Block* shared, bool write,
          unsigned strong, const uint32_t* data = nullptr, unsigned step = 0);
// Plain accesses in one region, by a pattern of lanes.
void look_at_pattern(Warp& w, const Op& op, const Pattern& pattern, uint64_t first, Block* shared, bool write,
                     const uint32_t* data = nullptr, unsigned step = 0);
void look_as(Warp& w, const Op& op, Agent agent, uint64_t at, unsigned bytes, Block* shared, bool write,
             unsigned lane = 0, unsigned strong = 0);
void look_as_barrier(Warp& w, const Op& op, const BytesBarrier& b, uint64_t at, unsigned bytes, Block* shared,
                     bool write, unsigned lane = 0, unsigned strong = 0);
// Another block of the cluster touches a block's shared memory.
void look_at_visit(Warp& w, const Op& op, uint32_t lanes, Block& of, bool write);
void look_at_end(Warp& w, const Op& op);  // of a warp: its copies out of shared memory have read it
uint16_t new_agent(Block& block);

// The lanes of an access whose end (of a read, if that is enough; or as the copy engine sees it) a clock of a unit has
// reached.
enum class Reach { All, Read, Proxied };
uint32_t reached(const Clock& clock, uint32_t own_unit, const Access& was, Reach what);

// What orders them: of the lanes of a warp that are named.
void meet(Warp& w, uint32_t lanes);
void release_to(Warp& w, Clock& clock, uint32_t lanes);
// Arrivals at a barrier of the block, and what lanes learn that leave it.
void arrive_at(Warp& w, NamedBarrier& barrier, uint32_t lanes);
void leave_from(Warp& w, NamedBarrier& barrier, uint32_t lanes);
// As an arrival without a fence does: that its reads have ended; and what a fence before it has covered.
void release_reads_to(Warp& w, Clock& clock, uint32_t lanes, Scope scope);
void acquire_from(Warp& w, const Clock& clock, uint32_t lanes);
void step(Warp& w);  // what follows is not part of what was released
void fence(Warp& w, Scope scope, uint32_t lanes);
void acquire_pending(Warp& w, Scope widest, uint32_t lanes);
void acquire_ticket(Warp& w, uint32_t lanes);  // where it arrives at a barrier
// A strong access of lanes to one address, or their atomics.
void publish(Warp& w, uint32_t lanes, uint64_t address, unsigned strong, bool reads, bool writes);
bool publishes(const Warp& w);  // whether there is anything to release or to acquire
void fence_proxy(Warp& w, uint32_t lanes);
unsigned index_of(const Warp& w, Agent agent);
void close_group_of(Warp& w, Agent agent, uint32_t lanes);
void wait_for_group_of(Warp& w, Agent agent, unsigned left, uint32_t lanes);
void release_copies_to(Warp& w, Clock& clock, uint32_t lanes);
void complete_phase(BytesBarrier& b);
void forget_releases();
void each_touched(void (*take)(void*, uint64_t, uint32_t, uint32_t, uint32_t), void* to);
void wait_for_launch_ahead(Warp& w, uint32_t lanes);
void let_next_start(Warp& w);

}  // namespace rung_machine
