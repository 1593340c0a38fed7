// Looks for accesses of the same bytes, one of them a write, that nothing orders. Barriers order their threads,
// __syncwarp its lanes; shuffles and votes order nothing. A fence releases what came before it in its lane through the
// atomics and strong stores behind it, and acquires what those before it have read, within the scopes of both (a
// barrier: within its block, and what read-modify-writes have read). An arrival at a byte barrier releases what came
// before it in its lane, to other blocks if there is a fence. order.cpp keeps what each lane knows.
// Asynchronous work is an agent's: it is ordered before those that have waited for it.
#include "races.h"

#include <stdio.h>

#include <algorithm>
#include <memory>
#include <set>

#include "machine.h"

namespace rung_machine {
namespace {

constexpr size_t MOST_READERS = 256;
constexpr unsigned WHOLE_ROW = WARP;  // in place of a lane: the cell of a row is looked at

std::vector<std::vector<Access>> crowds(1);
std::vector<uint32_t> unused_crowds;

// With tiles: by which instructions the threads of the present unit have loaded a word.
struct Load
{
    uint32_t instruction, lanes;
    uint16_t index;
};
struct Loads
{
    uint32_t unit;
    std::vector<Load> of;
};
std::unordered_map<uint64_t, Loads> loads;
std::set<std::pair<uint32_t, uint32_t>> told;  // instructions of races, where the launch goes on

struct Touched
{ uint32_t read, written, plain; };  // words of a line of 128 bytes; `plain`: not by strong accesses alone
using Lines = std::unordered_map<uint64_t, Touched>;
Lines present, ahead;  // of this launch, and of those that may still run beside a dependent one behind it
uint64_t present_line;
Touched* present_words;                // of that line
bool unknown_ahead, lets_start_early;  // the last: the present launch, before its own wait

struct Who
{
    Warp& w;
    const Op& op;
    Order& order;
    uint32_t unit, clock;
    uint16_t index;
    bool agent, by_proxy;  // of asynchronous work; which sees generic writes after a fence only
};

unsigned warps_of(const Block& block) { return unsigned(block.warps.size()); }
unsigned all_warps(const Block& block) { return warps_of(block) * unsigned(block.cluster->size()); }

Order& order_of(Warp& w) { return *w.order; }

bool knows(const Clock& clock, const Access& was)  // of this cluster, by all its lanes
{ return was.index < clock.own.of.size() && clock.own.of[was.index] >= was.clock; }

bool reaches(const Who& who, unsigned lane, const Access& was, Reach what)
{
    const Order& o = who.order;
    uint32_t left = was.lanes & ~reached(o.known, who.unit, was, what);
    if (left && o.apart >> lane & 1) left &= ~reached(*o.beyond[lane], who.unit, was, what);
    if (o.waits_apart & left & 1u << lane && was.unit == who.unit)
        for (const Agent agent : {Agent::Copy, Agent::Out})
            if (was.index == index_of(who.w, agent) && was.clock <= o.waited[unsigned(agent)][lane])
                left &= ~(1u << lane);
    if (left && !o.met_at.empty() && what != Reach::Proxied && was.unit == who.unit && was.index == o.index)
        each(left, [&](unsigned l) { left &= ~(uint32_t(o.met_at[lane * WARP + l] >= was.clock) << l); });
    return !left;
}

bool ordered(const Who& who, unsigned lane, const Access& was, bool shared, Reach what = Reach::All)
{
    const Order& o = who.order;
    if (lane == WHOLE_ROW) {  // look_at_row has seen to what the warp itself has accessed
        Access whole = was;
        whole.lanes = lanes_of_layout(was.lanes);
        return (was.unit == who.unit && was.index == o.index) ||
               !(whole.lanes & ~reached(o.known, who.unit, whole, what));
    }
    if (was.unit == who.unit && was.index == o.index &&
        (was.clock <= o.met || was.lanes == 1u << lane || (launch.tiles && shared)))
        return true;
    if (was.unit == who.unit && was.index == o.index && was.lanes >> lane & 1) {
        Access others = was;
        others.lanes &= ~(1u << lane);
        return reaches(who, lane, others, what);
    }
    return reaches(who, lane, was, what);
}

bool both_strong(const Who& who, unsigned strong, const Access& was)
{
    const unsigned narrower = std::min<unsigned>(strong, was.strong);
    if (!narrower || narrower > OF_GPU) return narrower;
    if (was.unit != who.unit) return false;
    const unsigned per = warps_of(*who.w.block);
    return narrower > OF_BLOCK + 1 || was.index / per == who.order.index / per;
}

void note_load(const Who& who, unsigned lane, uint64_t word)
{
    Loads& here = loads[word];
    if (here.unit != who.unit || here.of.empty()) here.unit = who.unit, here.of.clear();
    for (Load& l : here.of)
        if (l.index == who.index && l.instruction == who.op.number) {
            l.lanes |= 1u << lane;
            return;
        }
    here.of.push_back({who.op.number, 1u << lane, who.index});
}

// A tile with fewer elements than threads is held in copies, and one of the threads that hold an element stores it:
// whether this thread and the other one have loaded the word by the same instruction.
bool holds_a_copy(const Who& who, unsigned lane, uint64_t word, const Access& was)
{
    const unsigned per = warps_of(*who.w.block);
    if (!launch.tiles || who.agent || was.unit != who.unit || was.index / per != who.order.index / per) return false;
    const auto found = loads.find(word);
    if (found == loads.end() || found->second.unit != who.unit) return false;
    uint32_t left = was.lanes;
    for (const Load& own : found->second.of)
        if (own.index == who.index && own.lanes >> lane & 1)
            for (const Load& other : found->second.of)
                if (other.index == was.index && other.instruction == own.instruction)
                    left &= was.lanes == ALL ? 0 : ~other.lanes;
    return !left;
}

rung_where where_of(const Access& was, const Warp& w)
{
    rung_where found = {int32_t(was.instruction), {}, 0, WARP};
    const unsigned per = warps_of(*w.block), all = all_warps(*w.block);
    block_index(was.unit, unsigned(was.index) % all / per, found.block);
    if (was.index < all)
        found.lane = unsigned(__builtin_ctz(was.lanes | 1u << 31)), found.thread = was.index % per * WARP + found.lane;
    return found;
}

// Ends the launch, or is told once for two instructions.
void race(const Who& who, unsigned lane, uint64_t at, Block* shared, bool write, const Access& was, bool was_write,
          const char* lacks)
{
    if (launch.race && !told.emplace(who.op.number, was.instruction).second) return;
    Fault fault(RUNG_RACE);
    fault.space = shared ? RUNG_SHARED_SPACE : RUNG_GLOBAL_SPACE, fault.address = at, fault.bytes = 4;
    fault.writes = write, fault.other_wrote = was_write;
    Access other = was;
    if (was.unit == who.unit && was.index == who.order.index && was.lanes & ~(1u << lane)) other.lanes &= ~(1u << lane);
    fault.at = where(who.w, who.op, lane), fault.other = where_of(other, who.w);
    const unsigned all = all_warps(*who.w.block);
    const bool was_agent = was.index >= all,
               elsewhere = memcmp(fault.at.block, fault.other.block, sizeof fault.at.block);
    if (was_agent && was_write && ordered(who, lane, was, shared)) {
        snprintf(fault.text, sizeof fault.text, "reads asynchronously what a copy has written");
        snprintf(fault.lacks, sizeof fault.lacks, "%s", lacks);
    } else if (was_agent) {
        snprintf(fault.text, sizeof fault.text, "%s%s what a copy or product under way %s", write ? "writes" : "reads",
                 who.agent ? " asynchronously" : "", was_write ? "writes" : "reads");
        snprintf(fault.lacks, sizeof fault.lacks, "%s, or the wait is for another one (wait_group, byte barrier)",
                 lacks);
    } else {
        const uint32_t *const b = fault.other.block, *const size = launch.block, t = fault.other.thread;
        char of[80] = "";
        if (elsewhere) snprintf(of, sizeof of, " of block (%u, %u, %u)", b[0], b[1], b[2]);
        snprintf(fault.text, sizeof fault.text, "%s%s what thread (%u, %u, %u)%s has %s", write ? "writes" : "reads",
                 who.agent                                  ? " asynchronously"
                 : who.op.flags & READ_ONLY_CACHE && !write ? " through the read-only cache"
                                                            : "",
                 t % size[0], t / size[0] % size[1], t / (size[0] * size[1]), of, was_write ? "written" : "read");
        snprintf(fault.lacks, sizeof fault.lacks, "%s%s", lacks,
                 elsewhere ? " (of blocks: a __threadfence before the flag or counter that tells of it)" : "");
    }
    if (!launch.race) throw fault;
    launch.race(&fault);
}

// A block whose shared memory another one still reads or writes, or may.
[[noreturn]] void race_at_end(Warp& w, const Op& op, const Access& was, const Block& of)
{
    Fault fault(RUNG_RACE);
    fault.space = RUNG_SHARED_SPACE, fault.writes = fault.other_wrote = was.strong;
    fault.at = where(w, op, WARP), fault.other = where_of(was, w);
    snprintf(fault.text, sizeof fault.text,
             "block (%u, %u, %u) ends, whose shared memory another block of the cluster %s", of.index[0], of.index[1],
             of.index[2], was.strong ? "writes" : "reads");
    snprintf(fault.lacks, sizeof fault.lacks, "with no barrier of the cluster between");
    throw fault;
}

void test_reads(const Who& who, unsigned lane, const Cell& cell, uint64_t at, Block* shared, unsigned mask,
                unsigned strong)
{
    const auto test = [&](const Access& read) {
        if (read.clock && read.mask & mask && !both_strong(who, strong, read) &&
            !ordered(who, lane, read, shared, Reach::Read) && !(read.index == who.index && who.agent) &&
            (shared || !holds_a_copy(who, lane, at / 4, read)))
            race(who, lane, at, shared, true, read, false, "with no barrier between");
    };
    test(cell.read), test(cell.apart);
    if (cell.others) {
        Access other = cell.read;
        const unsigned per = warps_of(*who.w.block);
        each(cell.others, [&](unsigned i) {
            other.index = uint16_t(cell.read.index / per * per + i);
            if (other.index != who.order.index || other.unit != who.unit) test(other);
        });
    }
    if (cell.crowd)
        for (const Access& read : crowds[cell.crowd]) test(read);
}

// A later write that is ordered after `mine` is then ordered after `was`, too.
bool stands_for(const Who& who, unsigned lane, const Access& mine, const Access& was, bool shared)
{
    return !(was.mask & ~mine.mask) && mine.strong <= was.strong && (!who.agent || was.index == mine.index) &&
           ordered(who, lane, was, shared);
}

bool together(Access& was, const Access& mine)
{
    if ((was.mask != mine.mask && was.lanes != mine.lanes) || was.unit != mine.unit || was.index != mine.index ||
        was.clock != mine.clock || was.strong != mine.strong)
        return false;
    was.lanes |= mine.lanes, was.mask |= mine.mask;
    return true;
}

// Whether the lanes of a read are among those of the one before it; the layout of a row must be the same.
bool covers(unsigned lane, const Access& was, const Access& mine)
{ return lane == WHOLE_ROW ? was.lanes == mine.lanes : !(mine.lanes & ~was.lanes); }

// Whether the cell could hold it: that of a row has no crowd.
bool remember_read(const Who& who, unsigned lane, Cell& cell, const Access& mine, bool shared)
{
    Access& first = cell.read;
    if (!first.clock) {
        first = mine;
        return true;
    }
    const bool within = !cell.others || covers(lane, first, mine);  // the others' lanes are the first one's
    if (within && together(first, mine)) return true;
    Access& apart = cell.apart;
    if (apart.clock && apart.mask == mine.mask && together(apart, mine)) return true;
    if (!(first.mask & mine.mask) && first.unit == mine.unit &&
        (!apart.clock || (apart.unit == mine.unit && apart.mask == mine.mask))) {
        if (apart.clock && together(apart, mine)) return true;
        if (!apart.clock || stands_for(who, lane, mine, apart, shared)) {  // of another number in this word
            apart = mine;
            return true;
        }
    }
    if (first.unit != mine.unit && !launch.program->orders_blocks) {
        if (!apart.clock || (apart.unit == first.unit && apart.mask == first.mask))
            apart = mine;
        else
            together(apart, mine);
        return true;
    }
    const bool alone = !cell.others && !cell.crowd;
    const unsigned per = warps_of(*who.w.block), all = all_warps(*who.w.block);
    if (stands_for(who, lane, mine, first, shared)) {
        if (!alone) {  // those of the same count in the same block are ordered likewise, where a barrier ordered them
            bool covered = !cell.crowd;
            each(cell.others, [&](unsigned i) {
                Access other = first;
                other.index = uint16_t(first.index / per * per + i);
                covered &= other.index == who.order.index || knows(who.order.known, other);
            });
            if (covered && first.unit == mine.unit) cell.others = 0;
        }
        if (!cell.others) {
            first = mine;
            return true;
        }
    }
    const bool beside = first.unit == mine.unit && mine.index < all && first.index < all &&
                        first.index / per == mine.index / per && first.clock == mine.clock &&
                        first.strong == mine.strong && first.mask == mine.mask && covers(lane, first, mine);
    if (beside) {
        cell.others |= 1u << mine.index % per;
        return true;
    }
    if (!apart.clock || (apart.unit == mine.unit && stands_for(who, lane, mine, apart, shared))) {
        apart = mine;
        return true;
    }
    if (lane == WHOLE_ROW) return false;
    if (!cell.crowd && unused_crowds.empty()) unused_crowds.push_back(uint32_t(crowds.size())), crowds.emplace_back();
    if (!cell.crowd) cell.crowd = unused_crowds.back(), unused_crowds.pop_back();
    std::vector<Access>& crowd = crowds[cell.crowd];
    for (Access& read : crowd)
        if (together(read, mine)) return true;
    for (Access& read : crowd)
        if (stands_for(who, lane, mine, read, shared)) {
            read = mine;
            return true;
        }
    if (crowd.size() < MOST_READERS)
        crowd.push_back(mine);
    else
        crowd.back() = mine;
    return true;
}

// `same`: whether the lane that wrote it before, by the same instruction, wrote the same value; another warp's for
// WARP.
template <class F>
inline void touch(const Who& who, unsigned lane, Cell& cell, uint64_t at, Block* shared, unsigned mask, bool write,
                  unsigned strong, F same)
{
    if (launch.tiles && !shared && !write && !who.agent) note_load(who, lane, at / 4);
    Access last = cell.write;
    if (last.mask & mask) {
        last.lanes = 0;
        each(last.mask & mask, [&](unsigned i) { last.lanes |= 1u << cell.writers[i]; });
    }
    const Access mine = {who.clock, who.unit, who.op.number, 1u << lane, who.index, uint8_t(mask), uint8_t(strong)};
    if (last.clock && last.mask & mask && !both_strong(who, strong, last)) {
        const bool pieces =
            who.agent && last.index == who.index && last.unit == who.unit;  // of one operation, or of one barrier's
        if (!pieces && !ordered(who, lane, last, shared) &&
            (write || shared || !holds_a_copy(who, lane, at / 4, last))) {
            const unsigned per = warps_of(*who.w.block);
            const bool own = last.index == who.index && last.unit == who.unit;
            const bool copies = !launch.tiles || (last.unit == who.unit && last.index / per == who.order.index / per);
            const bool repeats =
                write && !strong && !last.strong && (own || copies) && last.instruction == who.op.number;
            if (!repeats || !same(own ? unsigned(__builtin_ctz(last.lanes)) : WARP))
                race(who, lane, at, shared, write, last, true,
                     repeats ? "by the same instruction, with another value" : "with no barrier between");
        } else if (!write && who.op.flags & READ_ONLY_CACHE && !shared && last.index < all_warps(*who.w.block))
            race(who, lane, at, shared, write, last, true, "which the cache of constants may not see");
        else if (!launch.tiles && !write && who.by_proxy && last.index < 2 * all_warps(*who.w.block) &&
                 last.unit == who.unit && !reaches(who, lane, last, Reach::Proxied))
            race(who, lane, at, shared, write, last, true, "with no fence.proxy.async between");
    }
    if (!write) {
        remember_read(who, lane, cell, mine, shared);
        return;
    }
    test_reads(who, lane, cell, at, shared, mask, strong);
    if (last.clock == mine.clock && last.index == mine.index && last.unit == mine.unit && last.strong == mine.strong)
        cell.write.mask |= uint8_t(mask), cell.write.lanes = mine.lanes, cell.write.instruction = mine.instruction;
    else
        cell.write = mine;
    each(mask, [&](unsigned i) { cell.writers[i] = uint8_t(lane); });
    cell.read.clock = cell.apart.clock = 0,
    cell.others = 0;  // ordered before this write, by whatever orders the write itself
    if (cell.crowd) crowds[cell.crowd].clear(), unused_crowds.push_back(cell.crowd), cell.crowd = 0;
}

template <class F>
void touch_span(const Who& who, unsigned lane, uint64_t first, unsigned bytes, Block* shared, bool write,
                unsigned strong, F same)
{
    for (uint64_t at = first, end = first + bytes; at < end;) {
        const uint64_t next = std::min(at / 4 * 4 + 4, end);
        const unsigned mask = ((1u << (next - at)) - 1) << at % 4;
        CellRow* const row = cell_row(shared, who.unit, at / 4);
        Cell* const cell = row ? cell_in(*row, at / 4) : nullptr;
        if (!cell) return;
        if (write) row->crowded = 0;
        const unsigned word = unsigned(at / 4 - first / 4);
        touch(who, lane, *cell, at, shared, mask, write, strong, [&](unsigned other) { return same(other, word); });
        at = next;
    }
}

uint32_t words_of(uint64_t at, unsigned bytes) { return (bytes < 4 ? 1u : (1u << bytes / 4) - 1) << at / 4 % 32; }

void note_touched(uint64_t at, unsigned bytes, bool write, unsigned strong)
{
    if (at / 128 != present_line || !present_words) present_line = at / 128, present_words = &present[present_line];
    const uint32_t mask = words_of(at, bytes);
    (write ? present_words->written : present_words->read) |= mask;
    if (!strong) present_words->plain |= mask;
}

bool has_waited(const Order& o, unsigned lane)
{ return o.known.waited || (o.apart >> lane & 1 && o.beyond[lane]->waited); }

// Before a dependent launch waits for the launch ahead, it may read only what that does not write, and write only what
// that does not touch.
void stay_behind(Warp& w, const Op& op, unsigned lane, uint64_t at, unsigned bytes, bool write)
{
    if (!launch.dependent || has_waited(order_of(w), lane) || region_of(at).flags & CONSTANT_REGION) return;
    const uint32_t mask = words_of(at, bytes);
    unsigned by_it = 0;
    if (unknown_ahead)
        by_it = region_of(at).flags & INPUT_REGION && !write ? 2 : 3;
    else if (const auto found = ahead.find(at / 128); found != ahead.end())
        by_it = (found->second.written & mask ? 2 : 0) | (found->second.read & mask ? 1 : 0);
    if (!(by_it & 2) && !(write && by_it)) return;
    Fault fault(RUNG_RACE);
    fault.space = RUNG_GLOBAL_SPACE, fault.address = at, fault.bytes = bytes, fault.writes = write,
    fault.other_wrote = by_it & 2;
    fault.at = where(w, op, lane);
    snprintf(fault.text, sizeof fault.text, "%s what the launch ahead may still %s", write ? "writes" : "reads",
             by_it & 2 ? "write" : "read");
    snprintf(fault.lacks, sizeof fault.lacks, "before it waits for that launch (pdl_wait)");
    throw fault;
}

}  // namespace

void begin_races()
{
    told.clear();
    forget_global_cells(), forget_releases(), crowds.resize(1), unused_crowds.clear(), loads.clear();
    if (!launch.dependent || !lets_start_early) ahead.clear();
    if (launch.dependent)
        for (const auto& [line, how] : present) ahead[line].read |= how.read, ahead[line].written |= how.written;
    present.clear(), present_words = nullptr;
    unknown_ahead = launch.ahead, lets_start_early = false;
}

// Where nothing orders blocks, reads by two others are enough.
static bool is_crowded(const Who& who, const Cell& cell)
{
    const Access &first = cell.read, &apart = cell.apart;
    return !launch.program->orders_blocks && first.clock && first.unit != who.unit && apart.clock &&
           apart.unit != who.unit && apart.unit != first.unit;
}

// Whether every later write is a race, whoever reads it now.
static bool is_crowded_for_good(const Who& who, const Cell& cell)
{
    const auto whole = [](const Access& of) { return of.mask == 15 && !of.strong; };
    return !cell.write.clock && is_crowded(who, cell) && whole(cell.read) && whole(cell.apart);
}

// A plain or strong read of a whole word, by several lanes at once: mostly of what nothing has written, or another warp
// before a barrier. Whether that was all; if not, nothing has changed.
static inline bool read_word(const Who& who, unsigned lane, Cell& cell, const Access& mine, bool shared)
{
    const Access& was = cell.write;
    if (was.clock && ((who.op.flags & READ_ONLY_CACHE && !shared) || was.unit != who.unit ||
                      (was.index == who.index ? was.clock > who.order.met : !knows(who.order.known, was))))
        return false;
    const Access& first = cell.read;
    if (!first.clock)
        cell.read = mine;
    else if (is_crowded(who, cell))
        return true;
    else if ((cell.others && !covers(lane, first, mine)) || !together(cell.read, mine))
        remember_read(who, lane, cell, mine, shared);
    return true;
}

// A plain write of a whole word that nobody has accessed since what is ordered before; likewise.
static inline bool write_word(const Who& who, unsigned lane, Cell& cell)
{
    const Access& was = cell.write;
    if (cell.others || cell.crowd || cell.read.clock || cell.apart.clock ||
        (was.clock &&
         (was.unit != who.unit || (was.index == who.index ? was.clock > who.order.met : !knows(who.order.known, was)))))
        return false;
    cell.write = {who.clock, who.unit, who.op.number, 1u << lane, who.index, 15, 0};
    memset(cell.writers, int(lane), sizeof cell.writers);
    return true;
}

namespace {

// Of these lanes the first ones, at one address.
template <class Address>
uint32_t beginning(uint32_t lanes, const Address* at)
{
    const Address first = at[__builtin_ctz(lanes)];
    uint32_t same = 0;
    do same |= lanes & -lanes, lanes &= lanes - 1;
    while (lanes && at[__builtin_ctz(lanes)] == first);
    return same;
}

// Accesses of words, one after another; the row of the last is kept.
struct Words
{
    const Who& who;
    Block* const shared;
    const unsigned strong;
    CellRow* row = nullptr;
    uint64_t number = ~0ull;

    Words(const Who& who, Block* shared, unsigned strong) : who(who), shared(shared), strong(strong) {}

    void at(uint64_t word)
    {
        if (word / ROW_WORDS != number) number = word / ROW_WORDS, row = cell_row(shared, who.unit, word);
    }

    bool are_crowded(uint64_t word, uint32_t words)
    {
        at(word);
        const uint64_t bits = uint64_t(words) << word % ROW_WORDS;
        return row && !(bits & ~uint64_t(row->crowded));
    }

    // Whether all is told of these lanes' reads of the words, or of bytes of one.
    bool read(uint64_t word, unsigned words, uint32_t lanes, bool whole = true)
    {
        const Access mine = {who.clock, who.unit, who.op.number, lanes, who.index, 15, uint8_t(strong)};
        bool all = true;
        for (const uint64_t end = word + words; word < end; word++) {
            at(word);
            const uint32_t bit = 1u << word % ROW_WORDS;
            if (!row || row->crowded & bit) continue;
            Cell* const cell = cell_in(*row, word);
            if (!cell) continue;
            if (is_crowded_for_good(who, *cell))
                row->crowded |= bit;
            else if (!whole)
                all &= !cell->write.clock && is_crowded(who, *cell);
            else
                all &= read_word(who, unsigned(__builtin_ctz(lanes)), *cell, mine, shared);
        }
        return all;
    }

    bool write(uint64_t word, unsigned words, unsigned lane)
    {
        bool all = true;
        for (const uint64_t end = word + words; word < end; word++) {
            at(word);
            Cell* const cell = row ? cell_in(*row, word) : nullptr;
            if (!cell) continue;
            row->crowded = 0;
            all &= write_word(who, lane, *cell);
        }
        return all;
    }
};

}  // namespace

void look(Warp& w, const Op& op, uint32_t lanes, const uint64_t* at, unsigned bytes, Block* shared, bool write,
          unsigned strong, const uint32_t* data, unsigned step)
{
    if (!shared && launch.followed) each(lanes, [&](unsigned l) { note_touched(at[l], bytes, write, strong); });
    if (!launch.races) return;
    Order& o = order_of(w);
    const Who who = {w, op, o, w.block->unit, o.count, o.index, false, false};
    if (!write && bytes % 4 == 0 && !launch.tiles && (shared || !(launch.dependent || launch.inputs))) {
        Words of(who, shared, strong);
        uint32_t left = 0;
        for (uint32_t rest = lanes, same; rest; rest &= ~same) {
            same = beginning(rest, at);
            if (!of.read(at[__builtin_ctz(rest)] / 4, bytes / 4, same)) left |= same;
        }
        lanes = left;
    } else if (write && !strong && bytes % 4 == 0 && !launch.tiles && (shared || !launch.dependent)) {
        Words of(who, shared, 0);
        each(lanes, [&](unsigned l) { lanes &= ~(uint32_t(of.write(at[l] / 4, bytes / 4, l)) << l); });
    }
    each(lanes, [&](unsigned l) {
        if (!shared) {
            stay_behind(w, op, l, at[l], bytes, write);
            if (launch.inputs && region_of(at[l]).flags & INPUT_REGION) return;
        }
        touch_span(who, l, at[l], bytes, shared, write, strong, [&](unsigned other, unsigned word) {
            if (other < WARP || (!data && !shared)) return data && data[word * step + l] == data[word * step + other];
            if (shared && (launch.tiles || !data))
                return bool(launch.tiles);  // which turns tiles by matrices whose rows other lanes hold
            const uint8_t* const now = shared ? shared->shared.data() + at[l] : reinterpret_cast<const uint8_t*>(at[l]);
            return !memcmp(&data[word * step + l], now + 4 * word, std::min(4u, bytes - 4 * word));
        });
    });
}

// The commonest read of a row: another warp of the block has read it likewise since what was written before all.
static bool is_beside(const Who& who, const Cell& cell, const Access& mine)
{
    const Access &write = cell.write, &first = cell.read;
    const unsigned per = warps_of(*who.w.block);
    return first.clock == mine.clock && first.unit == mine.unit && first.lanes == mine.lanes && first.mask == 15 &&
           !first.strong && first.index != mine.index && first.index / per == mine.index / per &&
           (!cell.apart.clock || cell.apart.unit != who.unit || cell.apart.index != who.index) &&
           (!write.clock || (write.unit == who.unit && write.index != who.index && knows(who.order.known, write)));
}

// Whether one cell tells of all accesses to a row, this one too; if not, nothing has changed.
static bool look_at_row(const Who& who, CellRow& row, uint32_t layout, Block* shared, bool write)
{
    Cell& cell = row.all;
    if (!write && who.op.flags & READ_ONLY_CACHE && !shared && cell.write.clock) return false;
    const Access mine = {who.clock, who.unit, who.op.number, layout, who.index, 15, 0};
    if (!write && is_beside(who, cell, mine)) {
        cell.others |= 1u << who.index % warps_of(*who.w.block);
        return true;
    }
    // What a lane of this warp has accessed since all of them met is in order for this lane alone.
    for (const Access* was : {&cell.write, &cell.read, &cell.apart})
        if (was->clock && was->unit == who.unit && was->index == who.index && was->clock > who.order.met &&
            was->lanes != layout)
            return false;
    const auto is_ordered = [&](const Access& was, Reach what) {
        return !was.clock || ordered(who, WHOLE_ROW, was, shared, what);
    };
    if (!is_ordered(cell.write, Reach::All)) return false;
    if (!write) return remember_read(who, WHOLE_ROW, cell, mine, shared);
    bool all = is_ordered(cell.read, Reach::Read) && is_ordered(cell.apart, Reach::Read);
    if (cell.others) {
        Access other = cell.read;
        const unsigned per = warps_of(*who.w.block);
        each(cell.others, [&](unsigned i) {
            other.index = uint16_t(cell.read.index / per * per + i);
            all &= is_ordered(other, Reach::Read);
        });
    }
    if (!all) return false;
    cell.write = mine, cell.read.clock = cell.apart.clock = 0, cell.others = 0;
    return true;
}

// The same where each word has its cell: true if all words are in order.
static bool look_at_words(const Who& who, CellRow& row, uint32_t layout, Block* shared, bool write)
{
    const unsigned first_lane = layout & 0xff, shift = layout >> 8;
    Access mine = {who.clock, who.unit, who.op.number, 0, who.index, 15, 0};
    if (!write) {
        for (unsigned i = 0; i < ROW_WORDS; i++) {
            const unsigned lane = first_lane + (i >> shift);
            mine.lanes = 1u << lane;
            if (!read_word(who, lane, row.words[i], mine, shared)) return false;  // reading again changes nothing
        }
        return true;
    }
    for (unsigned i = 0; i < ROW_WORDS; i++) {
        const Cell& cell = row.words[i];
        const auto is_ordered = [&](const Access& was, Reach what) {
            return !was.clock || ordered(who, first_lane + (i >> shift), was, shared, what);
        };
        if (cell.others || cell.crowd || !is_ordered(cell.write, Reach::All) || !is_ordered(cell.read, Reach::Read) ||
            !is_ordered(cell.apart, Reach::Read))
            return false;
    }
    mine.lanes = layout;
    row.forget(), row.all.write = mine;
    return true;
}

// The lanes at each address, in the order of addresses.
static void make_groups(const Pattern& p, unsigned bytes)
{
    const auto apart = [&](unsigned l) { return int32_t(p.apart[l]); };
    for (uint32_t left = p.lanes; left;) {
        unsigned first = unsigned(__builtin_ctz(left));
        each(left, [&](unsigned l) { first = apart(l) < apart(first) ? l : first; });
        uint32_t same = 0;
        each(left, [&](unsigned l) { same |= uint32_t(apart(l) == apart(first)) << l; });
        p.group[p.groups++] = same, left &= ~same;
    }
    p.words = 0;
    if (bytes >= 4 && p.beyond - p.least <= int32_t(4 * ROW_WORDS))
        each(p.lanes, [&](unsigned l) { p.words |= words_of(uint64_t(apart(l) - p.least), bytes); });
}

void look_at_pattern(Warp& w, const Op& op, const Pattern& p, uint64_t first, Block* shared, bool write,
                     const uint32_t* data, unsigned step)
{
    Order& o = order_of(w);
    const Who who = {w, op, o, w.block->unit, o.count, o.index, false, false};
    const auto at = [&](unsigned l) { return first + uint64_t(int64_t(int32_t(p.apart[l]))); };
    const auto look_at_lanes = [&](uint32_t lanes) {
        uint64_t every[WARP];
        for (unsigned l = 0; l < WARP; l++) every[l] = at(l);
        look(w, op, lanes, every, op.bytes, shared, write, 0, data, step);
    };
    if (launch.tiles || launch.dependent) return look_at_lanes(p.lanes);
    const unsigned words = op.bytes / 4;
    if (!words || !p.every || p.every == Pattern::SCATTERED || first % (4 * ROW_WORDS)) {
        if (write) return look_at_lanes(p.lanes);
        if (p.repeats && !p.groups) make_groups(p, op.bytes);
        Words of(who, shared, 0);
        if (p.repeats && p.words && of.are_crowded((first + uint64_t(int64_t(p.least))) / 4, p.words)) return;
        uint32_t left = 0;
        for (uint32_t rest = p.lanes, i = 0, same; rest; rest &= ~same, i++) {
            same = p.repeats ? p.group[i] : beginning(rest, p.apart);
            if (!of.read(at(unsigned(__builtin_ctz(same))) / 4, std::max(words, 1u), same, words)) left |= same;
        }
        return left ? look_at_lanes(left) : void();
    }
    const unsigned shift = unsigned(__builtin_ctz(words)), lanes = ROW_WORDS >> shift;
    for (unsigned i = 0; i < words; i++) {
        CellRow* const row = cell_row(shared, who.unit, first / 4 + i * ROW_WORDS);
        const uint32_t layout = layout_of(i * lanes, shift);
        if (!row || (!write && row->crowded == ALL)) continue;
        if (!write && !row->words && is_crowded_for_good(who, row->all)) {
            row->crowded = ALL;
            continue;
        }
        if (write) row->crowded = 0;
        if (row->words ? look_at_words(who, *row, layout, shared, write)
                       : look_at_row(who, *row, layout, shared, write))
            continue;
        look_at_lanes((lanes == WARP ? ALL : (1u << lanes) - 1) << i * lanes);
        if (!write) continue;
        row->forget();  // each word's last access is this one
        row->all.write = {who.clock, who.unit, op.number, layout, who.index, 15, 0};
    }
}

static void look_as_index(Warp& w, const Op& op, uint16_t index, uint32_t clock, bool by_proxy, uint64_t at,
                          unsigned bytes, Block* shared, bool write, unsigned lane, unsigned strong)
{
    if (!shared) {
        if (launch.followed) note_touched(at, bytes, write, strong);
        stay_behind(w, op, lane, at, bytes, write);
        if (region_of(at).flags & INPUT_REGION) return;
    }
    const Who who = {w, op, order_of(w), w.block->unit, clock, index, true, by_proxy};
    touch_span(who, lane, at, bytes, shared, write, strong, [](unsigned, unsigned) { return false; });
}

void look_as(Warp& w, const Op& op, Agent agent, uint64_t at, unsigned bytes, Block* shared, bool write, unsigned lane,
             unsigned strong)
{
    if (!launch.races) return;
    Order& o = order_of(w);
    const uint32_t clock = o.group[unsigned(agent)][lane] + 1;
    const uint16_t index = uint16_t(index_of(w, agent));
    look_as_index(w, op, index, clock, agent != Agent::Copy, at, bytes, shared, write, lane, strong);
    if (agent == Agent::Out && shared && !write)
        o.reading = {clock, w.block->unit, op.number, 1u << lane, index, 15, 0};
}

void look_at_visit(Warp& w, const Op& op, uint32_t lanes, Block& of, bool write)
{
    const Order& o = order_of(w);
    Access& last = of.visits[o.index];
    if (last.clock != o.count) last = {o.count, w.block->unit, op.number, 0, o.index, 15, 0};
    last.lanes |= lanes, last.instruction = op.number, last.strong = write;
    if (of.done()) race_at_end(w, op, last, of);
}

// Whether some lane of the block knows that others' accesses of its shared memory have ended.
static void look_at_visits(Warp& w, const Op& op)
{
    for (const auto& [index, was] : w.block->visits) {
        uint32_t left = was.lanes;
        for (const auto& warp : w.block->warps) {
            const Order& o = order_of(*warp);
            left &= ~reached(o.known, was.unit, was, Reach::Read);
            for (unsigned l = 0; l < WARP && left; l++)
                if (o.beyond[l]) left &= ~reached(*o.beyond[l], was.unit, was, Reach::Read);
        }
        if (left) race_at_end(w, op, was, *w.block);
    }
}

void look_at_end(Warp& w, const Op& op)
{
    if (!launch.races) return;
    if (!w.block->visits.empty() && w.block->done()) look_at_visits(w, op);
    Order& o = order_of(w);
    const Who who = {w, op, o, w.block->unit, o.count, o.index, false, false};
    if (!o.reading.clock || reaches(who, unsigned(__builtin_ctz(o.reading.lanes)), o.reading, Reach::All)) return;
    Fault fault(RUNG_RACE);
    fault.space = RUNG_SHARED_SPACE, fault.at = fault.other = where(w, op, WARP);
    fault.other.instruction = int32_t(o.reading.instruction);
    snprintf(fault.text, sizeof fault.text, "ends without waiting for the bulk copy");
    snprintf(fault.lacks, sizeof fault.lacks, "which may still read it (cp.async.bulk.wait_group)");
    throw fault;
}

void look_as_barrier(Warp& w, const Op& op, const BytesBarrier& b, uint64_t at, unsigned bytes, Block* shared,
                     bool write, unsigned lane, unsigned strong)
{
    if (!launch.races) return;
    look_as_index(w, op, b.agent, b.phase + 1, true, at, bytes, shared, write, lane, strong);
    // The block may not end before somebody there knows that the copy has arrived.
    if (!shared || (write && shared == w.block)) return;
    const Access& last =
        shared->visits[b.agent] = {b.phase + 1, w.block->unit, op.number, 1u << lane, b.agent, 15, uint8_t(write)};
    if (shared->done()) race_at_end(w, op, last, *shared);
}

uint16_t new_agent(Block& block) { return uint16_t(4 * all_warps(block) + block.cluster->front()->agents++); }

void each_touched(void (*take)(void*, uint64_t, uint32_t, uint32_t, uint32_t), void* to)
{
    for (const auto& [line, how] : present) take(to, line, how.read, how.written, how.plain);
}

void let_next_start(Warp& w)
{
    if (launch.races && !order_of(w).known.waited && !order_of(w).apart) lets_start_early = true;
}

}  // namespace rung_machine
