// What the model of an SM is given: the instructions that the warps of sampled blocks have executed, with what each did
// to memory and to barriers (record.cpp). simulate.cpp issues them by the control codes that the compiler wrote into
// the instructions; caches.cpp has shared memory, caches and TMA. Times are in clocks.
#pragma once
#include <algorithm>
#include <variant>

#include "machine.h"
#include "races.h"

namespace rung_machine {

// Of the 21 bits from 105: clocks until the warp's next instruction; whether another warp goes first; dependence
// counters that it raises until its result is there, or its operands have been read (7: none), and those that must be 0
// before it.
struct Control
{
    unsigned stall, keeps, write, read, waits;
    explicit Control(uint32_t c)
        : stall(c & 15), keeps(c >> 4 & 1), write(c >> 5 & 7), read(c >> 8 & 7), waits(c >> 11 & 63)
    {
    }
};

// ---- events: what an instruction did beyond computing -----------------------------------------------------------

struct SharedAccess
{ uint32_t passes; };  // wavefronts; of an atomic, lanes of the busiest bank

struct ConstantAccess  // by addresses that differ
{ uint32_t addresses; };

struct GlobalAccess
{
    enum Use : uint8_t { LOAD, STORE, ATOMIC } use;
    uint8_t bytes;  // of a lane
    uint16_t scattered, lines,
        again;       // sectors that a copy by lanes reads once more, for several lines of shared memory
    uint32_t count;  // of sectors
    uint64_t first;  // in Stream::sectors
};

struct BulkCopy  // by TMA
{
    bool store, signals;  // the latter: an mbarrier
    uint16_t blocks;      // of the cluster, whose mbarriers are signalled; 0: its own alone
    uint32_t bytes, barrier, count;
    uint64_t first;
};

struct BarrierArrival  // of a block's warps
{
    uint32_t number, threads;  // 0: all
    bool waits;
};

struct MbarrierUse
{
    Bytes what;
    uint32_t at,
        amount;  // its place, the rank of the cluster's block from bit 24; arrivals, bytes, or a phase's parity
};

struct GroupClosed  // of asynchronous work
{ Agent of; };
struct GroupAwaited
{
    Agent of;
    uint32_t left;
};

using Happening = std::variant<SharedAccess, ConstantAccess, GlobalAccess, BulkCopy, BarrierArrival, MbarrierUse,
                               GroupClosed, GroupAwaited>;

struct Stream  // of a warp
{
    uint64_t block;
    uint32_t rank, in_cluster, unit;
    std::vector<uint32_t> code;  // number of the instruction; ACTIVE: some lane executed it; ACTS: it has events
    std::vector<std::pair<Happening, bool>> events;  // with whether it is the last one of its instruction
    std::vector<uint64_t> sectors;                   // addresses / 32
    static constexpr uint32_t ACTIVE = 1u << 31, ACTS = 1u << 30, NUMBER = ACTS - 1;
};

extern std::vector<std::unique_ptr<Stream>> streams;

// Of a GPU (timing.def).
struct Constants
{
#define CONSTANT(name, value, source) double name;
#include "timing.def"
    double latency[PIPES];   // until the counter of an instruction without memory is lowered
    double occupied[PIPES];  // the clocks for which the units of opcodes are, of those in the table
};

// Why a warp did not issue.
enum Stall : uint8_t {
#define STALL(name, shown) name,
#include "timing.def"
    STALLS
};

// Atomics on the memory that is busiest with them, by the sampled blocks, scaled to the grid.
struct AtomicQueue
{
    double clocks = 0;
    bool swaps = false;  // there are compare-and-swaps, which a busy memory makes fail, and be tried again
};

struct Simulated
{
    double clocks = -1;  // of one SM for its share of the grid; -1: nothing can go on
    double issued = 0;
    AtomicQueue atomics;
    std::vector<std::array<double, STALLS>> stalls;  // of each instruction: clocks of warps
};

class Memories  // L1 and shared memory of one SM, its share of L2 and of DRAM
{
public:
    Memories(const Constants& c, double used_shared, double active);
    double access(double at, double passes);  // to shared memory: when its data are there
    double load(double at, const Stream& s, const GlobalAccess& of, uint32_t copy, bool first_wave, bool keeps);
    double store(double at, const Stream& s, const GlobalAccess& of, bool has_result);
    double copy(double at, const Stream& s, const BulkCopy& of, uint32_t copy, bool first_wave);
    double path_free = 0, stored = 0;  // `stored`: when the last store has come
    double path(double at, double passes) { return path_free = std::max(path_free, at) + passes; }

private:
    struct Line
    {
        uint64_t tag = 0;
        double used = -1;
        uint8_t valid = 0;
    };
    const Constants& c;
    double second_rate, memory_rate, second_free = 0, memory_free = 0, store_free = 0, engine_free = 0, active;
    size_t sets;
    std::vector<std::array<Line, 4>> lines;
    std::unordered_map<uint64_t, double> line_free;  // of lines that many ask for at once
    std::unordered_map<uint64_t, double> coming,
        fetched;  // sectors on their way to the first cache; what DRAM has given to the second
    double from_second(double at, uint64_t sector, uint32_t copy, bool first_wave);
    double send(double at, const Stream& s, uint64_t first, uint32_t sectors, uint32_t lines, double clocks_of_l2);
};

void measure_sharing(const Constants& c, uint64_t blocks, double together,
                     double sets);                              // of the recorded streams' memory, by region
AtomicQueue atomic_queue(const Constants& c, uint64_t blocks);  // after measure_sharing
double writers_of(uint64_t sector);
void clear_atomics();
std::vector<uint32_t> sample(uint64_t units, uint64_t places, uint64_t resident);
Simulated simulate(const Program& program, const Constants& c, uint64_t blocks, uint32_t resident, uint32_t cluster,
                   double shared_bytes, double sets);
void remember_launch();  // what the last launch has touched is in L2
void forget_launches();  // nothing is

}  // namespace rung_machine
