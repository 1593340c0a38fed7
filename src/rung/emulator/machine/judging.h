// What a launch is judged by: the memory that it may touch, what has been written, races. machine.h and entry.h come first.
#pragma once
#include "machine.h"

namespace rung_machine {

enum class Fault : uint32_t { Barrier = 1, Deadlock, Bounds, Shared, Unsupported, Trap, Race, Async, Unwritten };
enum class Where : uint32_t { Global, Shared, Local };
enum class Why : uint32_t { None, Outside, Input, Null, Misaligned, SameInstruction, ReadOnlyCache, Proxy, UnderWay, Diverged, Exited, Counts, BeforeStart };

// The fault that ended the launch, beside its text: what a sentence is made of.
struct Judged
{
    uint32_t kind, why, memory, write;
    uint64_t address;  // in shared memory its offset
    uint32_t bytes, block[3], thread;
    int32_t other_op;  // of a race: the access before
    uint32_t other_write, other_block[3], other_thread;
};
extern Judged judged;

struct Region { uint64_t from, to; uint8_t* written; uint32_t flags, reserved; };
enum : uint32_t { ONLY_READ = 1, CONSTANT_MEMORY = 2 };

struct Judging
{
    std::vector<Region> regions;  // sorted; empty: only what the system faults on is found
    bool races, unwritten, on;    // on: any of these
    uint32_t order, seed, poison;
};
extern Judging judging;

[[noreturn]] void fault(const Warp& warp, const Op* op, unsigned lane, Fault kind, Why why, Where memory, uint64_t address, unsigned bytes, bool write);

// One access of a warp's lanes to global memory, or to a block's shared memory, where addresses count from its start.
struct Access
{
    const Op* op;
    uint32_t lanes;
    const uint64_t* at;
    unsigned bytes;
    bool read, write;
    uint8_t strong = 0;                // 0: plain; 1 to 3: an atomic or volatile one of a block, cluster, the GPU
    const uint32_t* values = nullptr;  // of a store: rows of words, `step` apart
    unsigned step = 0;
};
void judge_global(Warp& warp, const Access& access);
void judge_shared(Warp& warp, Block& of, const Access& access);
void judge_local(Warp& warp, const Op& op, uint32_t lanes, const uint64_t* at, unsigned bytes, bool write);
void allocated(uint64_t from, uint64_t bytes, bool lives);  // by the kernel
void poison(void* to, size_t bytes);
uint64_t drawn();  // the next number of the seed

// ---- races.cpp ------------------------------------------------------------------------------------------------------
void begin_races();
void end_races();
void enter(Block& block);  // its warps begin
void leave(Block& block);
void check_races(Warp& warp, Block* shared_of, const Access& access);
void meet_block(Block& block);                       // a barrier of all its warps
void meet_lanes(Warp& warp, uint32_t lanes);         // __syncwarp
void arrive_named(Warp& warp, uint32_t lanes, unsigned barrier);
void leave_named(Warp& warp, uint32_t lanes, unsigned barrier);
void forget_named(Block& block, unsigned barrier);
void fence(Warp& warp, uint32_t lanes, unsigned scope);    // 0: block, 1: cluster, 2: GPU
void acquire(Warp& warp, uint32_t lanes, unsigned scope);  // what atomics have read
void arrive_bytes(Warp& warp, uint32_t lanes, BytesBarrier& barrier);
void complete_bytes(BytesBarrier& barrier);
void wait_bytes(Warp& warp, uint32_t lanes, const BytesBarrier& barrier);
void arrive_cluster(Warp& warp, uint32_t lanes);
void complete_cluster(std::vector<Block*>& cluster);
void wait_cluster(Warp& warp, uint32_t lanes);

// Copies and products under way are made by agents; what they touch is ordered behind who waits for them.
enum class Agent : uint8_t { Copies, Bulk, Products };  // of a warp: cp.async, copies out of shared memory, wgmma
void close_group(Warp& warp, Agent agent);
void wait_group(Warp& warp, uint32_t lanes, Agent agent, unsigned left);
void begin_bytes(Warp& warp, Block& of, BytesBarrier& barrier);  // a new barrier, and an agent for its copies
void arrive_copies(Warp& warp, uint32_t lanes, BytesBarrier& barrier);  // when the lanes' cp.async are complete
void complete_copy(BytesBarrier& barrier);
// Bytes of global memory (`of` is null) or of a block's shared memory that an agent touches; `barrier`: it is that one's.
void judge_span(Warp& warp, const Op& op, uint32_t lanes, Block* of, uint64_t from, uint64_t bytes, bool write, Agent agent, BytesBarrier* barrier = nullptr);
void fence_proxy(Warp& warp, uint32_t lanes);

}  // namespace rung_machine
