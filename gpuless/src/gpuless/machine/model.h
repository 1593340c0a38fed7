// What the model of a multiprocessor is given: the instructions that the warps of sampled blocks have executed, with
// what each asked of memory and of barriers (record.cpp). issue.cpp plays them by the control codes that the compiler
// wrote into the instructions; units and caches are in caches.cpp. Times are in clocks.
#pragma once
#include "machine.h"
#include "races.h"

#include <algorithm>

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

enum class Asked : uint8_t {
    SHARED,
    GLOBAL,
    COPY,
    BARRIER,  // requests; of the copy engine; of a block's warps
    BYTES_BEGIN,
    BYTES_ARRIVE,
    BYTES_EXPECT,
    BYTES_COMPLETE,
    BYTES_WAIT,
    CLOSE,
    WAIT  // groups of asynchronous work
};

struct Ask
{
    Asked asked;
    bool store = false, last = false;  // `last` of its instruction
    uint8_t bytes = 4;                 // of a lane
    uint16_t passes = 0;               // of the data path: wavefronts, or lines
    uint16_t again =
        0;  // sectors that a copy by lanes asks for once more, since they go to several lines of shared memory
    uint32_t count = 0, place = 0, amount = 0;
    uint64_t first = 0;  // of `count` sectors in Stream::sectors
};

struct Stream  // of a warp
{
    uint64_t block;
    uint32_t rank, in_cluster, unit;
    std::vector<uint32_t> code;  // number of the instruction; ACTIVE: some lane executed it; ASKS: it has events
    std::vector<Ask> events;
    std::vector<uint64_t> sectors;  // addresses / 32
    static constexpr uint32_t ACTIVE = 1u << 31, ASKS = 1u << 30, NUMBER = ASKS - 1;
};

extern std::vector<std::unique_ptr<Stream>> streams;

// Constants of a GPU, in clocks and bytes a clock (emulator/timing.py declares them again, with their sources).
struct Constants
{
    double multiprocessors, memory_bytes, second_cache_size;  // of all the GPU: bytes a clock; bytes
    double second_cache_bytes, port_bytes;                    // bytes a clock: of all; of a multiprocessor
    double first_cache_size;                                  // bytes, with shared memory
    double fetch;                                             // sectors that DRAM gives to the second cache at a time
    double shared_latency, first_cache_latency, second_cache_latency, memory_latency, atomic_latency, fence_latency;
    double latency[11];   // until the counter of an instruction without memory is lowered, by Pipe
    double occupied[11];  // the clocks for which the units of opcodes are, of those in the table; by Pipe
    double product_interval, group_tail;       // of a warp's product of 32 bytes of depth; beyond a group's products
    double copy_latency, copy_interval;        // of the copy engine
    double barrier_latency, barrier_interval;  // of a block's warps: from the last arrival; between arrivals
    double bytes_latency, branch;
    double first_start,
        block_start;  // until the first instruction of a block: when nothing is in the caches of code and constants;
                      // later
    double block_interval;  // between blocks that begin on all of the GPU
    double line, missed_line, pending_line, stored_line,
        line_of_quarter;  // of the data path; beyond it where it is not there yet; of the way out; of a quarter's
                          // address unit
    double cold_start;    // of a launch, before which DRAM gives nothing
    double line_sectors;  // a clock, that the second cache gives of one line to all of the GPU
    double stores_wait;   // clocks of stores on their way out, before the data path is held back
    double queue;         // instructions of a quarter that wait for the data path
};

// Why a warp did not issue, under the names of Nsight Compute.
enum Stall : uint8_t {
    SELECTED,
    WAITS,
    LONG_SCOREBOARD,
    SHORT_SCOREBOARD,
    MATH_PIPE,
    LG_THROTTLE,
    MIO_THROTTLE,
    BARRIER_STALL,
    MEMBAR_STALL,
    GMMA_STALL,
    NOT_SELECTED,
    BRANCH,
    STALLS
};

struct Played
{
    double clocks;  // of one multiprocessor for its share of the grid
    double issued;
    std::vector<std::array<double, STALLS>> stalls;  // of each instruction: clocks of warps
};

class Memories  // first cache and shared memory of one multiprocessor, its share of the second cache and of DRAM
{
public:
    Memories(const Constants& c, double used_shared, double active);
    double shared(double at, const Ask& ask);  // when its data are there
    double load(double at, const Stream& s, const Ask& ask, uint32_t copy, bool first_wave, bool keeps);
    double store(double at, const Stream& s, const Ask& ask, bool atomic);
    double bulk(double at, const Stream& s, const Ask& ask, uint32_t copy, bool first_wave);
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
};

void measure_sharing(const Constants& c, uint64_t blocks, double together,
                     double sets);  // of the recorded streams' memory, by region
std::vector<uint32_t> sample(uint64_t units, uint64_t places, uint64_t resident);
Played play(const Program& program, const Constants& c, uint64_t blocks, uint32_t resident, uint32_t cluster,
            double shared_bytes, double sets);
void remember_launch();  // what the last launch has touched is in the second cache
void forget_launches();  // nothing is

}  // namespace rung_machine
