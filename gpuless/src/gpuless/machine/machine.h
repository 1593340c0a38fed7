// Executes a kernel's machine code, as nvdisasm prints it, warp by warp, and counts what each instruction does. An
// instruction works on all 32 lanes at once; inactive lanes keep what they have.
#pragma once
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "entry.h"
#include "fault.h"
#include "races.h"

namespace rung_machine {

constexpr unsigned WARP = 32, ALL = ~0u;
constexpr unsigned UNIFORMS = 80;  // registers: 63 before sm_100
constexpr unsigned ZERO = 255, FIRST_UNIFORM = 256, SINK = FIRST_UNIFORM + UNIFORMS,
                   ROWS = SINK + 1;  // of a warp's registers; RZ and URZ read as 0
constexpr unsigned TRUE = 7, FIRST_UNIFORM_PREDICATE = 8, PREDICATES = 16, UNIFORM = UNIFORMS + 7;
constexpr uint64_t SHARED_WINDOW = 1ull << 48,
                   LOCAL_WINDOW = 2ull << 48;  // generic addresses; memory of the host lies below
constexpr uint64_t DRIVER_WINDOW = 3ull << 48, PRINTS = 1, ASSERTION_FAILS = 2, ALLOCATES = 3, RELEASES = 4,
                   NAMES_GROUP = 5, SYNCHRONIZES_GRID = 6;  // functions of the driver

using Row = uint32_t[WARP];

struct Warp;
struct Block;
struct Stream;
struct Op;
struct Opcode;
struct Launch;

enum class Kind : uint8_t { None, Register, Predicate, Number, Constant, Memory, Other };

struct Operand
{
    Kind kind = Kind::None;
    uint16_t index = ZERO;  // row of a register (uniform ones from FIRST_UNIFORM), predicate; of a constant its bank
    bool negative = false, absolute = false, inverted = false;  // -x, |x|, ~x or !p
    bool wide = false;                                          // memory: the base is a pair of registers
    bool uniform_wide = false;
    bool real = false;                     // a number with a fraction or an exponent, in `value` as a float
    uint16_t base = ZERO, uniform = ZERO;  // memory and constants: registers that are added to the offset
    uint16_t descriptor = ZERO;            // memory: desc[UR]
    int32_t offset = 0;
    uint8_t scale = 1;
    uint32_t value = 0;
    double exact = 0;
    std::string parts;                // what stands behind a dot: H0_H0, B1, tnspB
    const uint32_t* lanes = nullptr;  // numbers and constants without registers: their value, 32 times
};

// What the executions of an instruction ask of a memory.
struct Total
{ uint64_t requests, lanes, bytes, unique_bytes, sectors, lines, ideal_sectors, wavefronts, ideal_wavefronts; };

// What one request costs, and the request itself.
struct Cost
{
    uint32_t lanes, bytes, phase;  // mask; per lane; of the first address within a line, or within a bank
    uint32_t unique_bytes, sectors, lines, ideal_sectors, wavefronts, ideal_wavefronts;
    bool shared;
    uint32_t pattern;     // the number of the pattern that it was counted of; 0: of none
    int64_t apart[WARP];  // from the first lane's address
};

// How the addresses of an access lie, which is mostly as it was the time before.
struct Pattern
{
    uint32_t lanes = 0;     // 0: nothing is known
    bool repeats;           // it was the same before
    uint32_t number;        // of all patterns
    int32_t least, beyond;  // the range of bytes, from the first lane's address
    uint32_t apart[WARP];   // from the first lane's address, modulo 2^32
    unsigned every;         // with all lanes: the same number of bytes from each to the next; SCATTERED: it differs
    unsigned of_eight[WARP / 8];  // the same of eight lanes beside each other
    uint32_t bits;                // that any of `apart` has
    mutable unsigned groups;      // of lanes at one address, in the order of addresses; 0: not made yet
    mutable uint32_t group[WARP];
    mutable uint32_t words;  // if all lie within 32 words: which, from the lowest; else 0
    static constexpr unsigned SCATTERED = ~0u;
};

struct Memory  // of an instruction that touches memory
{
    Total total[2] = {};     // in global memory, in shared memory
    std::vector<Cost> last;  // by the place of the first lane within a line of 128 bytes, in words
    Cost worst = {};
    Pattern pattern;
};

constexpr uint32_t ALWAYS_STRONG = 1 << 19;  // of the flags of an atomic
constexpr uint32_t READ_ONLY_CACHE = 1 << 20,
                   VERIFIED = 1 << 21;                  // of the flags of a load; the latter: by a compare-and-swap
constexpr uint32_t STRONG = 4, WITHIN_BLOCK = 1 << 18;  // of the flags of an access
// Of an atomic that one lane executes for all, of the fences about it, and of the vote that tells which lanes.
constexpr uint32_t FOR_ALL_LANES = 1 << 22;
constexpr uint32_t ACQUIRES = 1, INITIALISES = 2;  // of the flags of a NOP (acquires.cpp)

using Handler = void (*)(Warp& warp, const Op& op, uint32_t lanes);

// A modifier: asking for one is a comparison of numbers.
struct Name
{
    uint64_t word[2] = {};
    __attribute__((always_inline)) Name(const char* text)
    { memcpy(word, text, std::min<size_t>(__builtin_strlen(text), sizeof word)); }
};

// How an instruction accesses which memory (ANY: its addresses tell), and in which direction (opcodes.h).
enum class Way : uint8_t { NONE, PLAIN, GENERIC, ATOMIC, OPERAND, MATRIX, CP_ASYNC, BULK, BARRIER, FENCE };
enum class Space : uint8_t { NONE, GLOBAL, SHARED, LOCAL, CONSTANT, ANY };
enum class Direction : uint8_t { NONE, READ, WRITE, UPDATE, COPY };

// What is known of an instruction's results: that they are a GPU's in every bit, that they come from a
// table found from a GPU's results, or that they are near (or depend on time, as clocks do).
enum class Fidelity : uint8_t { EXACT, TABLE, APPROXIMATE };

// Operands by their part: `out` and `p` are written, `s` are read, `in` are predicates that are read behind them.
struct Op
{
    const Opcode* opcode = nullptr;
    Handler run = nullptr;
    std::string name, text;  // the opcode before its first dot; the whole instruction
    std::vector<std::string> modifiers;
    std::vector<Name> names;  // of the modifiers
    Operand out, p[2], s[5], in[3];
    unsigned sources = 0, outs = 0, ins = 0;
    std::vector<Operand> every;  // in the order of the text
    uint16_t guard = TRUE;
    bool guard_inverted = false;
    bool uniform = false;  // of the uniform datapath: works once for the warp
    Fidelity fidelity = Fidelity::EXACT;
    Way way = Way::NONE;
    Space space = Space::NONE;
    Direction direction = Direction::NONE;
    bool store = false;
    uint8_t bytes = 4;     // memory: of a lane; conversions: of the integer
    uint32_t flags = 0;    // the handler's own
    uint32_t target = 0;   // the index of the instruction that a branch goes to
    uint32_t number = 0;   // its own index
    uint32_t control = 0;  // bits 105 to 125: what the compiler says about its issue (timing.h)
    mutable Memory* memory = nullptr;
    uint16_t products =
        0;  // clocks of a quarter's tensor cores: of a group's product; of a warp's, four for 32 bytes of depth
    bool copies = false;    // cp.async
    bool plain = false;     // its sources are registers and numbers as they are: none is negated, or of an indexed bank
    bool computes = false;  // it touches registers and predicates alone, so that its warp goes on
    bool meets = false;     // an atomic, or a fence: where blocks take turns, another may run right after it

    __attribute__((always_inline)) bool has(Name wanted) const
    {
        for (const Name& n : names)
            if (n.word[0] == wanted.word[0] && n.word[1] == wanted.word[1]) return true;
        return false;
    }
    // In that memory: a copy by lanes reads one and writes the other.
    bool stores(bool shared) const { return way == Way::CP_ASYNC ? shared : store; }
};

struct Tally
{
    uint64_t executed, lanes;  // by warps; by lanes whose predicate holds
    void count(uint32_t mask) { executed++, lanes += unsigned(__builtin_popcount(mask)); }
};

struct Program
{
    std::vector<Op> ops;
    std::unordered_map<uint32_t, uint32_t> at;  // index of the instruction at an address
    std::vector<uint32_t> addresses;            // of each instruction
    std::vector<Tally> tally;
    std::vector<Memory> memory;
    std::vector<std::unique_ptr<Row>> wide;  // values of numbers and constants
    std::vector<std::pair<Operand*, Row*>> constants;
    bool orders_blocks = false;       // has fences beyond a block
    std::string problem;              // why it cannot be executed
    std::string kernel;               // for sentences
    std::vector<std::string> places;  // of each instruction: a line, or nothing
};

// Lanes of a warp that are at one instruction.
enum class Wait : uint8_t { None, Converge, Together, Barrier };
struct Split
{
    uint32_t lanes, pc;
    Wait wait;
    uint32_t wanted;  // Converge: the barrier's number; Together: the lanes; Barrier: its number
    uint32_t kept;    // where its uniform registers are in Warp::kept, counted from 1; 0: it was not interrupted
};

struct Undefined  // lanes of a register, or of a predicate (ROWS and its number), and the read that they depend on
{ uint32_t part, lanes, read; };

struct Warp
{
    alignas(64) Row r[ROWS];
    uint32_t p[PREDICATES];
    // For each convergence barrier and lane the number of a mask: of the lanes that it waits for. A barrier that a
    // called function has saved, in a register or on its stack, is still told of lanes that leave.
    uint32_t converge[16][WARP];
    struct Mask
    {
        uint32_t lanes, holders;  // barriers of lanes that have this number
        bool saved;
    };
    std::vector<Mask> masks;
    std::vector<uint32_t> unused_masks;
    uint32_t alive, rank;
    Block* block;
    std::vector<Split> splits;
    std::vector<std::array<uint32_t, UNIFORM>>
        kept;                    // of splits that were interrupted: uniform registers, then predicates
    unsigned now = 0;            // the split that executes
    bool gives_way = false;      // the instruction waits for something: it is executed again later, and counted then
    bool pauses = false;         // others have their turn
    const Op* polled = nullptr;  // the last instruction that read what others may have written, and what it read
    uint32_t polled_value = 0;
    std::vector<uint8_t> local;  // [lane][bytes]
    uint64_t clock = 0;          // instructions that it has executed
    std::unique_ptr<Order> order;
    uint32_t registers = 0;      // of each thread, as setmaxnreg leaves them
    bool timed_out = false;      // a wait of a limited time has ended once without what it waited for
    Stream* recorded = nullptr;  // timing.h: what it executes, for the model of time
    std::vector<Undefined> undefined;

    uint32_t converging(unsigned barrier, unsigned lane) const { return masks[converge[barrier][lane]].lanes; }
    Split& split() { return splits[now]; }
    const Split& split() const { return splits[now]; }
    uint32_t pc() const { return splits[now].pc; }
    uint32_t lanes_for(const Op& op, uint32_t lanes) const
    { return op.flags & FOR_ALL_LANES && order ? order->voted[__builtin_ctz(lanes)] : lanes; }
    const uint32_t* row(const Operand& o, Row& scratch) const;
    uint32_t* target(const Operand& o) { return r[o.index == ZERO ? SINK : o.index]; }
    uint32_t predicate(const Operand& o) const
    { return o.kind == Kind::None ? ALL : o.inverted ? ~p[o.index] : p[o.index]; }
    void set(const Operand& o, uint32_t value, uint32_t lanes)
    {
        if (o.kind != Kind::Predicate || (o.index & 7) == TRUE) return;
        p[o.index] = (p[o.index] & ~lanes) | (value & lanes);
    }
};

struct BytesBarrier  // mbarrier
{
    int pending, expected;
    long bytes;
    unsigned phase;
    uint16_t agent;
    Clock collecting, complete_clock;  // of the arrivals in this phase, and in those before it
};

struct NamedBarrier
{
    unsigned arrived = 0, count = 0, sum = 0;
    uint32_t of_warp[WARP] = {};
    Clock clock, released[SCOPES];  // what arrivals release; what fences before them have covered
    bool any_released = false;
    std::shared_ptr<const Clock> shared_released[SCOPES];
};

struct Block
{
    uint32_t index[3], in_cluster;  // the latter: its rank
    std::vector<std::unique_ptr<Warp>> warps;
    std::vector<uint8_t> shared;
    std::unordered_map<uint32_t, BytesBarrier> bytes_barriers;  // by their place in shared memory
    std::unique_ptr<NamedBarrier> barriers[16];                 // null: nobody has arrived
    std::vector<Block*>* cluster;
    unsigned cluster_arrived = 0, reduced = 0;
    uint64_t number;             // in the grid
    uint32_t unit;               // its cluster's number
    unsigned agents = 0;         // of a cluster's first block: byte barriers that have been made in the cluster
    std::vector<CellRow> cells;  // of shared memory, for races.cpp
    Clock cluster_clock;         // of a cluster's first block: what arrivals at the cluster's barrier release
    bool cluster_met = false;
    // By the index of their warp: the last accesses of other blocks to its shared memory.
    std::unordered_map<uint16_t, Access> visits;
    bool done() const;
};

struct Region
{
    uint64_t from, to;
    uint32_t flags;
};
constexpr uint32_t INPUT_REGION = 1, CONSTANT_REGION = 2;  // nothing may write it; and no launch ahead writes it

struct Launch : rung_machine_launch  // as it was asked for, with what the machine makes of it
{
    Program* program;
    std::vector<Region> regions;   // memory that may be touched; none: all
    bool inputs;                   // some region is not to be written
    std::vector<uint8_t> bank[8];  // constant memory
    uint32_t first_shared;         // the first byte of shared memory that may be touched
    uint64_t changes;              // of memory
    uint64_t executed;             // instructions of warps so far
    uint32_t poisoned_with;  // the upper half of words of shared and local memory that nothing has written; 0: they are
                             // not known
    std::array<rung_machine_fault, 5> unwritten;  // by space: the first read of what nothing has written
    bool interleaved;                             // blocks take turns
};
extern Launch launch;
extern const Op* executing;

// A fault ends the launch.
struct Fault : rung_machine_fault
{
    Fault(rung_fault_kind kind) : rung_machine_fault()
    { this->kind = kind, at.instruction = other.instruction = -1, at.lane = other.lane = WARP; }
};
[[noreturn]] void fail(const Warp& warp, Fault fault, const char* format, ...);
rung_where where(const Warp& warp, const Op& op, unsigned lane);  // of a lane, or of none (WARP)
void block_index(uint32_t unit, unsigned rank, uint32_t* index);
void note_executed(const Program& program);  // fidelity.cpp
void note_refused(const std::string& text);
void mark_verified_reads(Program& program);
unsigned rows_written(const Op& op);  // registers from its first one on, of an instruction that writes any
void mark_orders_within_blocks(Program& program);
// A load of several words of shared memory of which the first lie in it: whether nobody uses the others (ptxas merges
// loads of neighbours).
bool may_read_beyond(const Program& program, const Op& load, unsigned first);
const Region& region_of(uint64_t address);  // an empty one where there is none
// An access of lanes to global memory, which must be inside a region.
void require_inside(const Warp& w, const Op& op, uint32_t lanes, const uint64_t* at, unsigned bytes, bool write);

// Notes lanes that read global memory, or the block's shared memory, or their own, where nothing has written.
void look_for_unwritten(Warp& w, const Op& op, uint32_t lanes, const uint8_t* const* where, unsigned bytes);
// What such a read has made undefined is a fault where it is used (undefined.cpp).
void note_unwritten(Warp& w, const Op& op, unsigned lane, const Fault& read);
void use_words(const void* from, size_t bytes);
void end_undefined();  // after a launch

// ---- operands ---------------------------------------------------------------------------------------------------

uint64_t address(const Warp& warp, const Operand& o, unsigned lane);  // of a memory operand
// The host's address of a generic one; `shared`: whether it lies in a block's shared memory.
uint8_t* place(Warp& warp, uint64_t generic, unsigned lane, unsigned bytes, bool& shared);
// Another block of the cluster, whose shared memory a lane touches, has started: a barrier of the cluster has shown it.
void require_started(const Warp& warp, unsigned lane, uint64_t at, bool write);
uint8_t* shared_place(Warp& warp, uint32_t at, unsigned bytes);  // the rank of the cluster's block from bit 24
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);

inline float as_float(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
inline uint32_t as_bits(float f)
{
    uint32_t b;
    memcpy(&b, &f, 4);
    return b;
}

uint32_t constant_word(unsigned bank, uint64_t at);
const uint32_t* indexed_constant(const Warp& warp, const Operand& o, Row& made, int32_t beyond);

inline const uint32_t* Warp::row(const Operand& o, Row& scratch) const
{
    if (o.kind == Kind::Register) return r[o.index];
    if (o.lanes) return o.lanes;
    return indexed_constant(*this, o, scratch, 0);
}

// ---- counting and tracing -----------------------------------------------------------------------------------------

// One request of a warp. Addresses in shared memory count from its start.
const Cost& count_request(const Warp& warp, const Op& op, uint32_t lanes, const uint64_t* at, unsigned bytes,
                          bool shared);
// A copy of the copy engine: one request of one lane, in pieces that are contiguous.
struct Piece
{
    uint64_t at;
    unsigned bytes;
    bool shared;
    bool store;
    unsigned swizzle;
};
void count_copy(const Warp& warp, const Op& op, const std::vector<Piece>& pieces);
// What the first block does, in order.
enum class Event : uint32_t { Copy, Arrived, Product, Barrier, WaitBytes, Group, WaitGroup, WaitProducts };
void note(Event event, const Warp& warp, uint32_t amount = 0, uint32_t serial = 0);

// ---- what the model of time is told of sampled blocks (record.cpp)
// ---------------------------------------------------------

void begin_record(const uint32_t* chosen, uint32_t count, uint32_t only);
bool records_only();  // no other blocks run
const std::vector<uint32_t>& chosen_units();
void begin_record_of(Warp& warp);
void record(Warp& warp, const Op& op, bool active);
void forget_last(Warp& warp);  // it gave way, and comes again
void record_request(const Warp& warp, const Op& op, uint32_t lanes, const uint64_t* at, const Cost& cost);
void record_again(const Warp& warp, uint32_t sectors);  // of the request that was recorded last
void record_copy(const Warp& warp, const Op& op, const std::vector<Piece>& pieces, uint32_t barrier, bool signals,
                 uint32_t mask);
void record_barrier(const Warp& warp, uint32_t number, uint32_t count, bool arrives_only);
// Of an mbarrier; `at`: its place, the rank of the cluster's block from bit 24.
enum class Bytes : uint8_t { BEGINS, ARRIVES, EXPECTS, COMPLETES, WAITED };
void record_bytes(const Warp& warp, Bytes what, uint32_t at, uint32_t amount);
void record_group(const Warp& warp, bool waits, Agent agent, uint32_t left = 0);

// ---- the instructions' handlers, by opcode -------------------------------------------------------------------------

enum class Pipe : uint8_t {
#define PIPE(name, latency, source) name,
#include "timing.def"
};
constexpr unsigned PIPES = unsigned(Pipe::CBU) + 1;
enum class Width : uint8_t { WORD, PAIR, PAIR_UNLESS_32, DOUBLE, DATA, PREDICATES, COUNTED, MATRICES, GROUP };

struct Opcode  // a row of opcodes.h
{
    const char* name;
    Handler run;              // nullptr: it is not executed
    bool (*prepare)(Op& op);  // reads the modifiers; false if they do not belong together
    bool writes_register;     // the first operand behind predicates is written
    const char* modifiers;
    Pipe pipe;
    uint16_t interval;
    Width width;
    Way way;
    Space space;
    Direction direction;
    bool computes = false;  // with registers and predicates alone
};
using Table = std::unordered_map<std::string, Opcode>;
void add_integers(Table& table);
void add_floats(Table& table);
void add_memory(Table& table);
void add_control(Table& table);
void add_tensor(Table& table);
void add_async(Table& table);
void add_texture(Table& table);

float special_reciprocal(float x);
float special_root(float x);       // 1 / sqrt(x)
float special_power(float x);      // 2^x
float special_logarithm(float x);  // to the base 2
float special_square_root(float x);
float special_sine(float x);
float special_cosine(float x);
float special_tanh(float x);

// ---- scheduling ----------------------------------------------------------------------------------------------------

void run_grid();
void call_driver(Warp& warp, uint64_t function, uint32_t lanes);
void reconverge(Warp& warp);  // splits that wait for each other and have all come go on

template <class F>
inline void each(uint32_t lanes, F f)
{
    for (; lanes; lanes &= lanes - 1) f(unsigned(__builtin_ctz(lanes)));
}

// d[lane] = f(lane) for the active lanes.
template <class F>
inline void map(uint32_t* d, uint32_t lanes, F f)
{
    if (lanes == ALL) {
#pragma GCC ivdep
        for (unsigned l = 0; l < WARP; l++) d[l] = f(l);
        return;
    }
    Row made;
    for (unsigned l = 0; l < WARP; l++) made[l] = f(l);
#pragma GCC ivdep
    for (unsigned l = 0; l < WARP; l++) {
        const uint32_t on = -(lanes >> l & 1);
        d[l] = (made[l] & on) | (d[l] & ~on);
    }
}

// The lanes for which f(lane) holds, as a mask.
template <class F>
inline uint32_t where(F f)
{
    uint32_t bits = 0;
    for (unsigned l = 0; l < WARP; l++) bits |= uint32_t(f(l)) << l;
    return bits;
}

}  // namespace rung_machine
