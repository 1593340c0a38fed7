// Asynchronous copies, and the barriers of arrivals and bytes (mbarrier) that tell of them. A copy is made at once; the
// events say that it has arrived where somebody learns of it.
#include "machine.h"

#include "tensor_map.h"

#include <stdlib.h>

#include <algorithm>

namespace rung_machine {

using rung_emulator::TensorMapFields;

namespace {

// ---- copies of the first block, for the events ----------------------------------------------------------------------

struct UnderWay
{
    const Warp* warp;               // that began it
    const BytesBarrier* barrier;    // null: a copy out of shared memory
    unsigned phase, bytes, serial;  // the barrier's phase, or the group of copies
};
std::vector<UnderWay> under_way;
unsigned serials, groups[WARP];
struct Waited
{
    const BytesBarrier* barrier;
    unsigned phase;
};
Waited waited[WARP];  // what a warp is known to wait for

void begin_copy(const Warp& warp, const BytesBarrier* barrier, unsigned bytes)
{
    if (warp.block->number) return;
    note(Event::Copy, warp, bytes, ++serials);
    under_way.push_back({&warp, barrier, barrier ? barrier->phase : groups[warp.rank % WARP], bytes, serials});
}

template <class F>
void arrived(F known)
{
    const auto last =
        std::stable_partition(under_way.begin(), under_way.end(), [&](const UnderWay& copy) { return !known(copy); });
    for (auto copy = last; copy != under_way.end(); ++copy)
        note(Event::Arrived, *copy->warp, copy->bytes, copy->serial);
    under_way.erase(last, under_way.end());
}

// ---- barriers
// ---------------------------------------------------------------------------------------------------------

Block& block_of(Warp& warp, uint32_t at)
{
    Block& own = *warp.block;
    const uint32_t rank = at >> 24;
    if (rank == own.in_cluster) return own;
    if (!own.cluster || rank >= own.cluster->size())
        fail(warp, RUNG_BOUNDS, "there is no block %u in the cluster", rank);
    require_started(warp, WARP, at, true);
    return *(*own.cluster)[rank];
}

BytesBarrier& barrier_at(Warp& warp, Block& block, uint32_t at)
{
    const auto found = block.bytes_barriers.find(at & 0xffffff);
    if (found == block.bytes_barriers.end())
        fail(warp, RUNG_ASYNC, "there is no barrier at byte %d of shared memory",
             int(at & 0xffffff) - int(launch.reserved_shared));
    return found->second;
}

constexpr uint32_t MOST_ARRIVALS = 1 << 20;

// Counts are kept as what lacks to 2^20; the upper word's sign is the phase's parity.
uint64_t state_of(const BytesBarrier& b)
{
    return uint64_t(b.phase & 1) << 63 | uint64_t((MOST_ARRIVALS - uint32_t(b.pending)) & (MOST_ARRIVALS - 1)) << 43 |
           uint64_t((MOST_ARRIVALS - uint32_t(b.expected)) & (MOST_ARRIVALS - 1)) << 1;
}

void finish_phase(Warp& warp, BytesBarrier& b)
{
    if (b.pending < 0)
        fail(warp, RUNG_ASYNC, "a barrier of %d arrivals has one too many in phase %u", b.expected, b.phase);
    if (b.pending || b.bytes) return;
    b.phase++;
    b.pending = b.expected;
    complete_phase(b);
}

// What SYNCS does; of an arrival how many, and how many bytes are expected or complete.
enum : uint32_t {
    EXCHANGE = 1,
    ARRIVE,
    CHECK,
    INVALIDATE,
    WHAT = 7,
    ARRIVALS = 8,
    ARRIVALS_OF_REGISTER = 16,
    EXPECTS = 32,
    COMPLETES = 64,
    EXPECTS_ONE = 128,
    REMOTE = 256,
    DROPS = 512,
    TRIES = 1024
};

bool prepare_barrier(Op& op)
{
    static const struct
    {
        const char* name;
        uint32_t flags;
    } WAYS[] = {{"A1T0", ARRIVALS},
                {"ART0", ARRIVALS_OF_REGISTER},
                {"A0TR", EXPECTS},
                {"A0TX", COMPLETES},
                {"A0T1", EXPECTS_ONE}};
    op.bytes = 8;
    if (op.has("EXCH"))
        op.flags = EXCHANGE;
    else if (op.has("PHASECHK"))
        op.flags = CHECK | uint32_t(op.has("TRYWAIT")) * TRIES;
    else if (op.has("CCTL"))
        op.flags = INVALIDATE;
    else if (op.has("ARRIVE")) {
        op.flags = 0;
        for (const auto& way : WAYS)
            if (op.has(way.name)) op.flags = way.flags;
        if (!op.flags) op.flags = ARRIVALS | EXPECTS;
        op.flags |= ARRIVE | uint32_t(op.has("RED")) * REMOTE | uint32_t(op.has("OPTOUT")) * DROPS;
    } else
        return false;
    return true;
}

uint32_t value(const Warp& warp, const Operand& o, unsigned lane)
{
    Row scratch;
    return warp.row(o, scratch)[lane];
}

// Initialising a byte barrier is a write, and each use a read: without a barrier of threads between them, that is a
// race.
void look_at_barrier(Warp& warp, const Op& op, Block& block, uint32_t at, unsigned lane, bool write)
{
    uint64_t places[WARP];
    places[lane] = at & 0xffffff;
    look(warp, op, 1u << lane, places, 8, &block, write, 0);
}

void exchange(Warp& warp, const Op& op, unsigned lane)
{
    const uint32_t at = uint32_t(address(warp, op.s[1], lane)),
                   low = op.s[2].index == ZERO ? 0 : warp.r[op.s[2].index][lane];
    const int count = int(MOST_ARRIVALS - (low >> 1 & (MOST_ARRIVALS - 1)));
    if (at % 8) fail(warp, RUNG_BOUNDS, "a barrier is at no multiple of 8 bytes");
    shared_place(warp, (at & 0xffffff) | warp.block->in_cluster << 24, 8);
    look_at_barrier(warp, op, *warp.block, at, lane, true);
    warp.block->bytes_barriers[at & 0xffffff] = {count, count, 0, 0, new_agent(*warp.block), {}, {}};
    if (warp.recorded) record_bytes(warp, Bytes::BEGINS, at & 0xffffff, uint32_t(count));
}

// What arrivals release: to other blocks only what a fence has covered, and that reads have ended.
void release_arrivals(Warp& warp, const Op& op, Block& block, BytesBarrier& b, uint32_t lanes)
{
    if (op.flags & REMOTE && &block != warp.block)
        release_reads_to(warp, b.collecting, lanes, OF_CLUSTER), look_at_visit(warp, op, lanes, block, true);
    else
        release_to(warp, b.collecting, lanes);
}

void arrive(Warp& warp, const Op& op, uint32_t lanes)
{
    const auto arrivals_of = [&](unsigned l) {
        return op.flags & ARRIVALS ? 1 : op.flags & ARRIVALS_OF_REGISTER ? int(value(warp, op.s[2], l)) : 0;
    };
    uint32_t together = 0;  // they all arrive in one phase of one barrier: it is told of them once
    const auto release_together = [&](Block& block, BytesBarrier& b, uint32_t at, unsigned first) {
        uint32_t same = 0;
        int64_t count = 0;
        each(lanes & ~((1u << first) - 1), [&](unsigned l) {
            if (uint32_t(address(warp, op.s[1], l)) == at) same |= 1u << l, count += arrivals_of(l);
        });
        if (count > b.pending) same = 1u << first;
        together |= same;
        release_arrivals(warp, op, block, b, same);
    };
    each(lanes, [&](unsigned l) {
        const uint32_t at = uint32_t(address(warp, op.s[1], l)), given = value(warp, op.s[2], l);
        Block& block = op.flags & REMOTE ? block_of(warp, at) : *warp.block;
        BytesBarrier& b = barrier_at(warp, block, at);
        look_at_barrier(warp, op, block, at, l, false);
        if (const Operand& out = op.s[0]; out.index != ZERO) {
            const uint64_t state = state_of(b);
            warp.r[out.index][l] = uint32_t(state), warp.r[out.index + 1][l] = uint32_t(state >> 32);
        }
        const int arrivals = arrivals_of(l);
        if (launch.races && arrivals && !(together >> l & 1)) release_together(block, b, at, l);
        b.pending -= arrivals;
        if (op.flags & DROPS) b.expected -= arrivals;
        const long expects = op.flags & EXPECTS     ? long(given)
                             : op.flags & COMPLETES ? -long(given)
                                                    : long(bool(op.flags & EXPECTS_ONE));
        b.bytes += expects;
        if (warp.recorded) {
            const uint32_t place = op.flags & REMOTE ? at : (at & 0xffffff) | warp.block->in_cluster << 24;
            if (expects)
                record_bytes(warp, expects > 0 ? Bytes::EXPECTS : Bytes::COMPLETES, place, uint32_t(labs(expects)));
            if (arrivals) record_bytes(warp, Bytes::ARRIVES, place, uint32_t(arrivals));
        }
        finish_phase(warp, b);
    });
    step(warp);
    launch.changes++;
}

void check(Warp& warp, const Op& op, uint32_t lanes)
{
    uint32_t complete = 0, learned = 0;
    each(lanes, [&](unsigned l) {  // before any of them learns what the phase tells
        look_at_barrier(warp, op, *warp.block, uint32_t(address(warp, op.s[0], l)), l, false);
    });
    each(lanes, [&](unsigned l) {
        const uint32_t at = uint32_t(address(warp, op.s[0], l)), parity = value(warp, op.s[1], l) >> 31;
        const BytesBarrier& b = barrier_at(warp, *warp.block, at);
        const bool done = (b.phase & 1) != parity;
        complete |= uint32_t(done) << l;
        if (done && launch.races && !(learned >> l & 1)) {
            uint32_t same = 0;
            each(lanes, [&](unsigned other) {
                same |= uint32_t(uint32_t(address(warp, op.s[0], other)) == at &&
                                 value(warp, op.s[1], other) >> 31 == parity)
                        << other;
            });
            acquire_from(warp, b.complete_clock, same), learned |= same;
        }
        if (done && warp.recorded)
            record_bytes(warp, Bytes::WAITED, (at & 0xffffff) | warp.block->in_cluster << 24, parity);
        if (warp.block->number) return;
        Waited& before = waited[warp.rank % WARP];
        const unsigned phase = done ? b.phase - 1 : b.phase;
        const auto comes = [&](const UnderWay& copy) { return copy.barrier == &b && copy.phase < b.phase; };
        const bool learns = done && std::any_of(under_way.begin(), under_way.end(), comes);
        if ((!done || b.phase) &&
            (before.barrier != &b || before.phase != phase)) {  // not of a stage that was never full
            before = {&b, phase};
            note(Event::WaitBytes, warp, phase);
        }
        if (learns) arrived(comes);
    });
    warp.set(op.p[0], complete, lanes);
    if (complete == lanes) return;
    if (!complete && op.flags & TRIES && launch.races && !warp.timed_out)
        warp.timed_out = warp.pauses = true;
    else if (!complete && op.flags & TRIES)
        warp.gives_way = true;
    else
        warp.pauses = true;
}

void barrier(Warp& warp, const Op& op, uint32_t lanes)
{
    const uint32_t what = op.flags & WHAT;
    if (what == EXCHANGE)
        exchange(warp, op, unsigned(__builtin_ctz(lanes)));
    else if (what == ARRIVE)
        arrive(warp, op, lanes);
    else if (what == CHECK)
        check(warp, op, lanes);
    else
        each(lanes,
             [&](unsigned l) { warp.block->bytes_barriers.erase(uint32_t(address(warp, op.s[0], l)) & 0xffffff); });
}

// cp.async.mbarrier.arrive: an arrival, or of a counted byte, when the lane's copies have been made, as they have.
void arrive_after_copies(Warp& warp, const Op& op, uint32_t lanes)
{
    const bool arrives = op.has("ARVCNT");
    while (lanes) {
        const uint32_t at = uint32_t(address(warp, op.s[0], unsigned(__builtin_ctz(lanes))));
        uint32_t same = 0;
        each(lanes, [&](unsigned l) { same |= uint32_t(uint32_t(address(warp, op.s[0], l)) == at) << l; });
        lanes &= ~same;
        BytesBarrier& b = barrier_at(warp, *warp.block, at);
        release_copies_to(warp, b.collecting, same);
        each(same, [&](unsigned) {
            if (arrives)
                b.pending--;
            else
                b.bytes--;
            if (warp.recorded)
                record_bytes(warp, arrives ? Bytes::ARRIVES : Bytes::COMPLETES,
                             (at & 0xffffff) | warp.block->in_cluster << 24, 1);
            finish_phase(warp, b);
        });
    }
}

// ---- copies of lanes
// ------------------------------------------------------------------------------------------------------

// With ZFILL there are zeros behind what is read: the address says in its lowest bits how much is not.
bool prepare_lanes_copy(Op& op)
{
    op.bytes = op.has("128") ? 16 : op.has("64") ? 8 : 4;
    op.flags = uint32_t(op.has("ZFILL"));
    op.copies = true;
    return true;
}

// Neighbouring lanes share a sector if they take it to one line of shared memory; so the hardware counts.
void count_sectors_of_copy(const Warp& warp, const Op& op, uint32_t lanes, const uint64_t* from, const uint64_t* to)
{
    unsigned count = 0;
    uint64_t sector = ~0ull, line = ~0ull;
    each(lanes, [&](unsigned l) {
        count += sector != from[l] / 32 || line != to[l] / 128;
        sector = from[l] / 32, line = to[l] / 128;
    });
    const Cost& cost = count_request(warp, op, lanes, from, op.bytes, false);
    if (count <= cost.sectors) return;
    op.memory->total[0].sectors += count - cost.sectors;
    if (warp.recorded) record_again(warp, count - cost.sectors);
}

void copy_of_lanes(Warp& warp, const Op& op, uint32_t lanes)
{
    const uint32_t read = lanes & (op.ins ? warp.predicate(op.in[0]) : ALL), mine = warp.block->in_cluster << 24;
    uint64_t from[WARP] = {}, to[WARP] = {};
    const uint8_t* sources[WARP];
    uint32_t whole = 0;
    each(lanes, [&](unsigned l) {
        const uint32_t offset = uint32_t(address(warp, op.s[0], l)) & 0xffffff;
        to[l] = offset - launch.reserved_shared;
        if (offset % op.bytes)
            fail(warp, RUNG_BOUNDS, "an address in shared memory is no multiple of %u bytes", op.bytes);
        uint8_t* const target = shared_place(warp, offset | mine, op.bytes);
        unsigned taken = read >> l & 1 ? op.bytes : 0;
        from[l] = address(warp, op.s[1], l);
        if (taken) {
            const unsigned left = unsigned(from[l] % op.bytes);
            if (left && !op.flags) fail(warp, RUNG_BOUNDS, "an address is no multiple of %u bytes", op.bytes);
            from[l] -= left, taken -= left;
            bool shared;
            const uint8_t* const source = place(warp, from[l], l, taken, shared);
            if (!shared && taken)
                require_inside(warp, op, 1u << l, from, taken, false),
                    look_as(warp, op, Agent::Copy, from[l], taken, nullptr, false, l);
            sources[l] = source, whole |= uint32_t(taken == op.bytes) << l;
            memcpy(target, source, taken);
        }
        look_as(warp, op, Agent::Copy, offset, op.bytes, warp.block, true, l);
        memset(target + taken, 0, op.bytes - taken);
    });
    if (whole) look_for_unwritten(warp, op, whole, sources, op.bytes);
    if (read) count_sectors_of_copy(warp, op, read, from, to);
    count_request(warp, op, lanes, to, op.bytes, true);
}

void close_group(Warp& warp, const Op&, uint32_t lanes)
{
    note(Event::Group, warp);
    close_group_of(warp, Agent::Copy, lanes);
    if (warp.recorded) record_group(warp, false, Agent::Copy);
}

void close_bulk_group(Warp& warp, const Op&, uint32_t)
{
    note(Event::Group, warp);
    close_group_of(warp, Agent::Out, warp.split().lanes);
    if (warp.recorded) record_group(warp, false, Agent::Out);
    if (!warp.block->number) groups[warp.rank % WARP]++;
}

void wait_for_group(Warp& warp, const Op& op, uint32_t lanes)
{
    if (!op.flags) return;
    const unsigned left = op.s[1].value;
    wait_for_group_of(warp, Agent::Copy, left, lanes), wait_for_group_of(warp, Agent::Out, left, lanes);
    if (warp.recorded) record_group(warp, true, Agent::Copy, left), record_group(warp, true, Agent::Out, left);
    if (warp.block->number) return;
    note(Event::WaitGroup, warp, left);
    arrived([&](const UnderWay& copy) {
        return copy.warp == &warp && !copy.barrier && copy.phase + left < groups[warp.rank % WARP];
    });
}

bool prepare_wait_for_group(Op& op)
{
    op.flags = op.has("LE") && op.s[0].parts == "SB0";
    return true;
}

// ---- reductions
// -------------------------------------------------------------------------------------------------------------

// A reduction is atomic, each number by itself.
enum class Reduction : uint32_t { None, Add, Min, Max, Inc, Dec, And, Or, Xor };
enum class Type : uint32_t { U32, S32, U64, S64, F16, BF16, F32, F64 };

bool reduction_of(const Op& op, Reduction& how, Type& type)
{
    static const char* const WAYS[] = {"", "ADD", "MIN", "MAX", "INC", "DEC", "AND", "OR", "XOR"};
    static const char* const TYPES[] = {"", "S32", "U64", "S64", "F16", "BF16", "F32", "F64"};
    how = Reduction::None, type = op.has("64") ? Type::U64 : Type::U32;
    for (unsigned i = 1; i < 9; i++)
        if (op.has(WAYS[i])) how = Reduction(i);
    for (unsigned i = 1; i < 8; i++)
        if (op.has(TYPES[i])) type = Type(i);
    return how != Reduction::None;
}

unsigned strength_of(Reduction how) { return how == Reduction::None ? 0 : OF_GPU + 1; }

template <class T, class F>
void reduce_each(uint8_t* to, const uint8_t* from, unsigned bytes, F f)
{
    for (unsigned i = 0; i + sizeof(T) <= bytes; i += sizeof(T)) {
        T a, b;
        memcpy(&a, to + i, sizeof a), memcpy(&b, from + i, sizeof b);
        a = f(a, b);
        memcpy(to + i, &a, sizeof a);
    }
}

template <class T>
T extreme_or_sum(Reduction how, T a, T b)
{ return how == Reduction::Min ? (b < a ? b : a) : how == Reduction::Max ? (a < b ? b : a) : T(a + b); }

template <class T>
void reduce_integers(Reduction how, uint8_t* to, const uint8_t* from, unsigned bytes)
{
    reduce_each<T>(to, from, bytes, [&](T a, T b) -> T {
        switch (how) {
        case Reduction::Inc: return a >= b ? 0 : T(a + 1);
        case Reduction::Dec: return !a || a > b ? b : T(a - 1);
        case Reduction::And: return a & b;
        case Reduction::Or: return a | b;
        case Reduction::Xor: return a ^ b;
        case Reduction::Add: return T(uint64_t(a) + uint64_t(b));
        default: return extreme_or_sum(how, a, b);
        }
    });
}

void reduce(Reduction how, Type type, uint8_t* to, const uint8_t* from, unsigned bytes)
{
    switch (type) {
    case Type::U32: return reduce_integers<uint32_t>(how, to, from, bytes);
    case Type::S32: return reduce_integers<int32_t>(how, to, from, bytes);
    case Type::U64: return reduce_integers<uint64_t>(how, to, from, bytes);
    case Type::S64: return reduce_integers<int64_t>(how, to, from, bytes);
    case Type::F32:
        return reduce_each<float>(to, from, bytes, [&](float a, float b) { return extreme_or_sum(how, a, b); });
    case Type::F64:
        return reduce_each<double>(to, from, bytes, [&](double a, double b) { return extreme_or_sum(how, a, b); });
    case Type::F16:
        return reduce_each<uint16_t>(to, from, bytes, [&](uint16_t a, uint16_t b) {
            return float_to_half(extreme_or_sum(how, half_to_float(a), half_to_float(b)));
        });
    case Type::BF16:
        return reduce_each<uint16_t>(to, from, bytes, [&](uint16_t a, uint16_t b) {
            return float_to_bf16(extreme_or_sum(how, bf16_to_float(a), bf16_to_float(b)));
        });
    }
}

// ---- copies of the copy engine
// -----------------------------------------------------------------------------------------------

uint32_t uniform(const Warp& warp, const Operand& o, unsigned k)
{ return warp.r[(o.uniform == ZERO ? o.base : o.uniform) + k][0]; }
uint64_t uniform64(const Warp& warp, const Operand& o)
{ return uniform(warp, o, 0) | uint64_t(uniform(warp, o, 1)) << 32; }

void require_inside_of_copy(Warp& warp, const Op& op, uint64_t at, unsigned bytes, bool write)
{
    uint64_t places[WARP] = {at};
    require_inside(warp, op, 1, places, bytes, write);
}

// Data for a place in shared memory, of one block or, by a mask, of several, and for the same barrier in each.
void deliver(Warp& warp, const Op& op, std::vector<Piece>& pieces, const uint8_t* data, unsigned bytes, unsigned copied,
             unsigned swizzle, uint32_t to, uint32_t at_barrier, uint32_t mask, Reduction how = Reduction::None,
             Type type = Type::U32)
{
    Block& first = block_of(warp, at_barrier);
    begin_copy(warp, &barrier_at(warp, first, at_barrier), copied);
    for (uint32_t rank = mask ? 0 : to >> 24; rank < 16; rank++) {
        if (mask && !(mask >> rank & 1)) continue;
        const uint32_t start = (to & 0xffffff) | rank << 24;
        uint8_t* const target = shared_place(warp, start, bytes);
        if (how != Reduction::None)
            reduce(how, type, target, data, bytes);
        else if (!swizzle)
            memcpy(target, data, bytes);
        else
            for (unsigned i = 0; i < bytes; i += 16) {
                const uint32_t at = start + i, swizzled = at ^ (at >> 7 & ((1u << swizzle) - 1)) << 4;
                memcpy(shared_place(warp, swizzled, 16), data + i, std::min(16u, bytes - i));
            }
        pieces.push_back({(to & 0xffffff) - launch.reserved_shared, bytes, true, true, swizzle});
        const uint32_t signalled = mask ? (at_barrier & 0xffffff) | rank << 24 : at_barrier;
        BytesBarrier& b = barrier_at(warp, block_of(warp, signalled), signalled);
        look_as_barrier(warp, op, b, start & 0xffffff, bytes, &block_of(warp, start), true, 0, strength_of(how));
        if (rank == (mask ? unsigned(__builtin_ctz(mask)) : to >> 24))
            for (const Piece& piece : pieces) {
                const uint64_t skipped = piece.shared ? launch.reserved_shared : 0;
                Block* const from = piece.shared ? warp.block : nullptr;
                if (!piece.store) look_as_barrier(warp, op, b, piece.at + skipped, piece.bytes, from, false);
            }
        b.bytes -= bytes;
        finish_phase(warp, b);
        if (!mask) break;
    }
    launch.changes++;
    count_copy(warp, op, pieces);
    if (warp.recorded) record_copy(warp, op, pieces, at_barrier, true, mask);
}

// UBLKCP, UBLKRED: to S (shared) or G (global memory) from S or G; the third operand has the size, and the mask above
// it.
void bulk(Warp& warp, const Op& op, uint32_t)
{
    const uint32_t amount = value(warp, op.s[2], 0), bytes = (amount & 0xffff) * 16;
    const bool out = op.modifiers[0] == "G", from_shared = op.modifiers[1] == "S";
    const uint64_t to = out ? uniform64(warp, op.s[0]) : uniform(warp, op.s[0], 0);
    const uint64_t from = from_shared ? uniform(warp, op.s[1], 0) : uniform64(warp, op.s[1]);
    Reduction how;
    Type type;
    reduction_of(op, how, type);
    if (!bytes || to % 16 || from % 16)
        fail(warp, RUNG_BOUNDS, "a copy of %u bytes, from 0x%llx to 0x%llx: all must be multiples of 16", bytes,
             (unsigned long long)from, (unsigned long long)to);
    bool shared = from_shared;
    const uint8_t* const data = from_shared
                                    ? shared_place(warp, (from & 0xffffff) | warp.block->in_cluster << 24, bytes)
                                    : place(warp, from, 0, bytes, shared);
    if (!shared) require_inside_of_copy(warp, op, from, bytes, false);
    std::vector<Piece> pieces = {
        {from_shared ? (from & 0xffffff) - launch.reserved_shared : from, bytes, from_shared, false, 0}};
    if (!out)
        return deliver(warp, op, pieces, data, bytes, bytes, 0, uint32_t(to), uniform(warp, op.s[0], 1),
                       op.has("MULTICAST") ? amount >> 16 : 0, how, type);
    uint8_t* const target = place(warp, to, 0, bytes, shared);
    require_inside_of_copy(warp, op, to, bytes, true);
    const unsigned lane = unsigned(__builtin_ctz(warp.split().lanes));
    look_as(warp, op, Agent::Out, from & 0xffffff, bytes, warp.block, false, lane),
        look_as(warp, op, Agent::Out, to, bytes, nullptr, true, lane, strength_of(how));
    if (how == Reduction::None)
        memcpy(target, data, bytes);
    else
        reduce(how, type, target, data, bytes);
    pieces.push_back({to, bytes, false, true, 0});
    begin_copy(warp, nullptr, bytes);
    count_copy(warp, op, pieces);
    if (warp.recorded) record_copy(warp, op, pieces, 0, false, 0);
}

bool prepare_bulk(Op& op)
{
    Reduction how;
    Type type;
    const std::vector<std::string>& m = op.modifiers;
    const bool directed = m.size() > 1 && (m[0] == "S" || m[0] == "G") && (m[1] == "S" || m[1] == "G");
    op.store = directed && m[0] == "G";
    return directed && op.sources >= 3 && reduction_of(op, how, type) == (op.name == "UBLKRED");
}

struct Box  // rows of a tile, piece by piece in its order: in the tensor, or outside of it
{
    struct Row
    {
        uint64_t at;
        unsigned bytes;
        bool inside;
    };
    std::vector<Row> rows;
    unsigned bytes = 0, inside = 0;

    void add(bool in_tensor, uint64_t at, int64_t count, unsigned element)
    {
        if (count <= 0) return;
        const unsigned size = unsigned(count) * element;
        Row* const last = rows.empty() ? nullptr : &rows.back();
        if (last && last->inside == in_tensor && (!in_tensor || last->at + last->bytes == at))
            last->bytes += size;
        else
            rows.push_back({at, size, in_tensor});
        bytes += size, inside += in_tensor ? size : 0;
    }
};

Box box_of(const TensorMapFields& map, const int64_t* first)
{
    Box box;
    int64_t count[5] = {1, 1, 1, 1, 1}, step[5] = {1, 1, 1, 1, 1}, k[5] = {};
    for (unsigned d = 0; d < map.rank; d++)
        step[d] = map.element_strides[d], count[d] = (map.box[d] + step[d] - 1) / step[d];
    for (k[4] = 0; k[4] < count[4]; k[4]++)
        for (k[3] = 0; k[3] < count[3]; k[3]++)
            for (k[2] = 0; k[2] < count[2]; k[2]++)
                for (k[1] = 0; k[1] < count[1]; k[1]++) {
                    bool inside = true;
                    int64_t row = int64_t(map.address);
                    for (unsigned d = 1; d < map.rank; d++) {
                        const int64_t c = first[d] + k[d] * step[d];
                        inside &= c >= 0 && c < int64_t(map.dims[d]);
                        row += c * int64_t(map.strides[d - 1]);
                    }
                    const auto at = [&](int64_t c) { return uint64_t(row + c * map.element_bytes); };
                    if (step[0] == 1) {
                        const int64_t from = std::clamp<int64_t>(-first[0], 0, count[0]);
                        const int64_t to =
                            inside ? std::clamp<int64_t>(int64_t(map.dims[0]) - first[0], from, count[0]) : from;
                        box.add(false, 0, from, map.element_bytes);
                        box.add(true, at(first[0] + from), to - from, map.element_bytes);
                        box.add(false, 0, count[0] - to, map.element_bytes);
                    } else
                        for (int64_t e = 0; e < count[0]; e++) {
                            const int64_t c = first[0] + e * step[0];
                            box.add(inside && c >= 0 && c < int64_t(map.dims[0]), at(c), 1, map.element_bytes);
                        }
                }
    return box;
}

// A map that a kernel has made: the instructions of tensormap.replace write these bits.
TensorMapFields map_of(const uint8_t* bits)
{
    const auto word = [&](unsigned at) {
        uint32_t found;
        return memcpy(&found, bits + at, 4), found;
    };
    const uint32_t kind = word(8) >> 7 & 15;
    static const uint8_t BYTES[] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4};
    TensorMapFields map = {};
    if (kind >= sizeof BYTES || word(8) >> 11 & 3) return map;  // an element of 4 bits, or interleaved
    map.magic = rung_emulator::TENSOR_MAP_MAGIC;
    memcpy(&map.address, bits, 8);
    map.rank = uint8_t((word(8) >> 4 & 7) + 1), map.element_bytes = BYTES[kind], map.element = uint8_t(kind);
    map.swizzle = uint8_t(word(8) >> 13 & 3), map.fill = uint8_t(word(8) >> 15 & 1);
    for (unsigned d = 0; d < 5; d++) {
        if (d < 4) map.strides[d] = (uint64_t(word(12 + 4 * d)) | uint64_t(word(28) >> 4 * d & 15) << 32) << 4;
        map.dims[d] = word(32 + 4 * d) + 1;
        map.box[d] = uint16_t(bits[0x37 + d] + 1), map.element_strides[d] = uint8_t((word(0x34) >> 3 * d & 7) + 1);
    }
    return map;
}

Box box_at(Warp& warp, const Op& op, unsigned coordinates, const TensorMapFields*& map)
{
    bool shared;
    const uint64_t at = uniform64(warp, op.s[1]);
    const uint8_t* const bits = place(warp, at, 0, sizeof(TensorMapFields), shared);
    map = reinterpret_cast<const TensorMapFields*>(bits);
    if (map->magic != rung_emulator::TENSOR_MAP_MAGIC) {
        static TensorMapFields made;
        made = map_of(bits), map = &made;
    }
    if (map->magic != rung_emulator::TENSOR_MAP_MAGIC || map->rank < 1 || map->rank > 5)
        fail(warp, RUNG_BOUNDS, "there is no tensor map at 0x%llx", (unsigned long long)at);
    if (map->rank != op.flags) fail(warp, RUNG_BOUNDS, "a tensor map of %u dimensions", map->rank);
    const unsigned inner = map->box[0] * map->element_bytes;
    if (inner % 16 || (map->swizzle && inner != 16u << map->swizzle))
        fail(warp, RUNG_UNSUPPORTED, "a box of %u bytes in the first dimension, with swizzle %u, is not executed",
             inner, map->swizzle);
    int64_t first[5] = {};
    for (unsigned d = 0; d < map->rank; d++) first[d] = int32_t(uniform(warp, op.s[0], coordinates + d));
    return box_of(*map, first);
}

void load_tile(Warp& warp, const Op& op, uint32_t)  // [UR, the barrier, coordinates], [UR: the map], the mask
{
    const TensorMapFields* map;
    const Box box = box_at(warp, op, 2, map);
    static const uint32_t NANS[] = {0, 0x7f7f7f7f, 0x7fff7fff, 0, 0x7fffffff};
    const uint32_t fill = map->fill && map->element > 5 ? NANS[std::min<unsigned>(map->element_bytes, 4)] : 0;
    std::vector<uint32_t> data((box.bytes + 15) / 16 * 4);
    std::vector<Piece> pieces;
    uint8_t* to = reinterpret_cast<uint8_t*>(data.data());
    for (const Box::Row& row : box.rows) {
        bool shared;
        if (row.inside) {
            require_inside_of_copy(warp, op, row.at, row.bytes, false);
            memcpy(to, place(warp, row.at, 0, row.bytes, shared), row.bytes);
            pieces.push_back({row.at, row.bytes, false, false, 0});
        } else
            for (unsigned i = 0; i < row.bytes; i++) to[i] = uint8_t(fill >> i % 4 * 8);
        to += row.bytes;
    }
    if (map->element > 10)
        for (uint32_t& word : data) word = (word + 0x1000) & 0xffffe000;
    const uint32_t target = uniform(warp, op.s[0], 0);
    if (target % 128) fail(warp, RUNG_BOUNDS, "a tile begins at no multiple of 128 bytes");
    deliver(warp, op, pieces, reinterpret_cast<const uint8_t*>(data.data()), box.bytes, box.inside, map->swizzle,
            target, uniform(warp, op.s[0], 1), op.has("MULTICAST") ? value(warp, op.s[2], 0) >> 16 : 0);
}

void store_tile(Warp& warp, const Op& op, uint32_t)  // [UR, coordinates], [UR: the map]
{
    const TensorMapFields* map;
    const Box box = box_at(warp, op, 1, map);
    const uint32_t start = (uniform(warp, op.s[0], 0) & 0xffffff) | warp.block->in_cluster << 24;
    if (start % 128) fail(warp, RUNG_BOUNDS, "a tile begins at no multiple of 128 bytes");
    std::vector<uint8_t> data(box.bytes);
    Reduction how;
    Type type;
    reduction_of(op, how, type);
    const unsigned lane = unsigned(__builtin_ctz(warp.split().lanes));
    look_as(warp, op, Agent::Out, start & 0xffffff, box.bytes, warp.block, false, lane);
    for (unsigned i = 0; i < box.bytes; i += 16) {
        const uint32_t at = start + i, swizzled = at ^ (at >> 7 & ((1u << map->swizzle) - 1)) << 4;
        memcpy(data.data() + i, shared_place(warp, swizzled, 16), std::min(16u, box.bytes - i));
    }
    static const Type OF_ELEMENTS[] = {Type::U32, Type::U32, Type::U32, Type::S32,  Type::U64, Type::S64, Type::F16,
                                       Type::F32, Type::F32, Type::F64, Type::BF16, Type::F32, Type::F32};
    type = OF_ELEMENTS[std::min<size_t>(map->element, std::size(OF_ELEMENTS) - 1)];
    std::vector<Piece> pieces = {{(start & 0xffffff) - launch.reserved_shared, box.bytes, true, false, map->swizzle}};
    const uint8_t* from = data.data();
    for (const Box::Row& row : box.rows) {
        if (row.inside) {
            bool shared;
            uint8_t* const to = place(warp, row.at, 0, row.bytes, shared);
            require_inside_of_copy(warp, op, row.at, row.bytes, true);
            look_as(warp, op, Agent::Out, row.at, row.bytes, nullptr, true, lane, strength_of(how));
            if (how == Reduction::None)
                memcpy(to, from, row.bytes);
            else
                reduce(how, type, to, from, row.bytes);
            pieces.push_back({row.at, row.bytes, false, true, 0});
        }
        from += row.bytes;
    }
    begin_copy(warp, nullptr, box.bytes);
    count_copy(warp, op, pieces);
    if (warp.recorded) record_copy(warp, op, pieces, 0, false, 0);
}

bool prepare_tile(Op& op)
{
    Reduction how;
    Type type;
    const std::string& first = op.modifiers.empty() ? op.name : op.modifiers[0];
    op.flags = first.size() == 2 && first[1] == 'D' ? uint32_t(first[0] - '0') : 0;
    return op.flags >= 1 && op.flags <= 5 && reduction_of(op, how, type) == (op.name == "UTMAREDG");
}

// ---- STAS, REDAS: of lanes, to a place in the cluster's shared memory; its barrier is in the second register
// -----------

void store_and_signal(Warp& warp, const Op& op, uint32_t lanes)
{
    const Operand &where = op.s[0], &from = op.s[1];
    Reduction how;
    Type type;
    reduction_of(op, how, type);
    uint64_t to[WARP] = {};
    const unsigned bytes = op.bytes;
    if (!warp.block->number) {
        note(Event::Copy, warp, bytes * unsigned(__builtin_popcount(lanes)), ++serials);
        note(Event::Arrived, warp, bytes * unsigned(__builtin_popcount(lanes)), serials);
    }
    each(lanes, [&](unsigned l) {
        const uint32_t at = uint32_t(address(warp, where, l)), at_barrier = warp.r[where.base + 1][l];
        if (at % bytes) fail(warp, RUNG_BOUNDS, "an address is no multiple of %u bytes", bytes);
        uint32_t words[4];
        for (unsigned i = 0; i < bytes / 4; i++) words[i] = from.index == ZERO ? 0 : warp.r[from.index + i][l];
        uint8_t* const target = shared_place(warp, at, bytes);
        if (how == Reduction::None)
            memcpy(target, words, bytes);
        else
            reduce(how, type, target, reinterpret_cast<const uint8_t*>(words), bytes);
        to[l] = (at & 0xffffff) - launch.reserved_shared;
        BytesBarrier& b = barrier_at(warp, block_of(warp, at_barrier), at_barrier);
        look_as_barrier(warp, op, b, at & 0xffffff, bytes, &block_of(warp, at), true, l, strength_of(how));
        b.bytes -= bytes;
        if (warp.recorded) record_bytes(warp, Bytes::COMPLETES, at_barrier, bytes);
        finish_phase(warp, b);
    });
    count_request(warp, op, lanes, to, bytes, true);
}

bool prepare_store_and_signal(Op& op)
{
    Reduction how;
    Type type;
    op.bytes = op.has("128") ? 16 : op.has("64") || op.has("U64") || op.has("S64") ? 8 : 4;
    return reduction_of(op, how, type) == (op.name == "REDAS");
}

// ---- warp groups and the rest
// -------------------------------------------------------------------------------------------------

void no_effect(Warp&, const Op&, uint32_t) {}

void warp_group(Warp& warp, const Op& op, uint32_t lanes)
{
    if (!op.has("DEPBAR")) return;
    note(Event::WaitProducts, warp);
    const size_t at = op.text.find("gsb0, ");
    const unsigned left = at == std::string::npos ? 0 : unsigned(strtoul(op.text.c_str() + at + 6, nullptr, 0));
    wait_for_group_of(warp, Agent::Product, left, lanes);
    if (warp.recorded) record_group(warp, true, Agent::Product, left);
}

// A warp's bit in cluster_arrived is set from its arrival until all of the cluster have arrived.
void look_at_cluster(Block& block)
{
    for (const Block* other : *block.cluster)
        for (const auto& warp : other->warps)
            if (warp->alive && !(other->cluster_arrived >> warp->rank & 1)) return;
    Block& first = *block.cluster->front();
    for (Block* other : *block.cluster) {
        other->cluster_arrived = 0;
        for (const auto& warp : other->warps)
            if (warp->alive) acquire_from(*warp, first.cluster_clock, warp->alive), step(*warp);
    }
    first.cluster_clock = Clock(), first.cluster_met = true;
}

void arrive_in_cluster(Warp& warp, const Op&, uint32_t)
{
    if (warp.split().lanes != warp.alive)
        fail(warp, RUNG_UNSUPPORTED, "a part of a warp arrives at the cluster's barrier, which is not executed");
    warp.block->cluster_arrived |= 1u << warp.rank;
    release_reads_to(warp, warp.block->cluster->front()->cluster_clock, warp.alive, OF_CLUSTER), step(warp);
}

void wait_for_cluster(Warp& warp, const Op&, uint32_t)
{
    look_at_cluster(*warp.block);
    warp.gives_way = warp.block->cluster_arrived >> warp.rank & 1;
}

void fence_view(Warp& warp, const Op& op, uint32_t lanes)
{
    if (op.has("ASYNC")) fence_proxy(warp, op.uniform ? warp.split().lanes : lanes);
}

void wait_for_launch(Warp& warp, const Op&, uint32_t lanes) { wait_for_launch_ahead(warp, lanes); }
void start_next(Warp& warp, const Op&, uint32_t) { let_next_start(warp); }

// setmaxnreg: a block has 65,536 registers; a warp that asks for more waits until others have given some back.
void registers(Warp& warp, const Op& op, uint32_t)
{
    uint32_t wanted = warp.registers;
    for (const Operand& o : op.every)
        if (o.kind == Kind::Number) wanted = o.value;
    uint64_t all = wanted * WARP;
    for (const auto& other : warp.block->warps)
        if (other.get() != &warp) all += (other->registers ? other->registers : launch.registers) * WARP;
    const bool fits = all <= 65536 || !launch.races;
    if (fits)
        warp.registers = wanted, launch.changes++;
    else
        warp.pauses = true;
    if (op.outs) warp.set(op.p[0], fits ? ALL : 0, ALL);
}

#define OF_ASYNC
#include "rows.h"

}  // namespace

void begin_async()
{
    under_way.clear();
    serials = 0;
    for (unsigned i = 0; i < WARP; i++) groups[i] = 0, waited[i] = {};
}

void add_async(Table& table) { add_rows(table); }

}  // namespace rung_machine
