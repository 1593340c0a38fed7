// The clocks that a block takes at least: the longest chain of instructions of which each waits for what another computes,
// at the latencies that microbenchmarks of an H100 found; data that no earlier instruction of the run has touched comes from
// memory. Units that several warps share are not in it, as if each warp had
// its own: a lower bound, but for a line that another block has brought into the first cache.
#include "machine.h"

#include <stdlib.h>

#include <algorithm>

namespace rung_machine {
namespace {

constexpr uint32_t SHARED = 29, FIRST_CACHE = 40, SECOND_CACHE = COPY_CLOCKS, MEMORY = 479;
constexpr size_t LINES = 2048;       // of 128 bytes: the first cache, as if all of it held one block's lines
constexpr size_t ALL_LINES = 1 << 19;  // the second cache
std::vector<uint64_t> second_cache;

uint16_t width(const Op& op, bool of_source, unsigned source)
{
    switch (op.opcode->width) {
        case Width::MATRICES: {
            const bool small = op.has("1684") || op.has("1688");
            return !of_source || source == 2 ? 4 : source == 0 ? (small ? 2 : 4) : (small ? 1 : 2);
        }
        case Width::GROUP: {
            const size_t n = op.modifiers.empty() ? 0 : op.modifiers[0].find('x');
            const uint16_t registers = n == std::string::npos ? 4 : uint16_t(atoi(op.modifiers[0].c_str() + n + 1) / 2);
            return !of_source || source + 1 == op.sources ? registers : 4;
        }
        case Width::COUNTED: return op.has("4") ? 4 : op.has("2") ? 2 : 1;
        case Width::DATA: return std::max(1, op.bytes / 4);
        case Width::DOUBLE: return 2;
        case Width::PAIR_UNLESS_32: return of_source || op.has("32") ? 1 : 2;
        case Width::PAIR: {
            const bool pair = op.has("WIDE") || op.has("64") || op.has("U64") || op.has("S64") || op.has("F64");
            return pair && (!of_source || source == 2 || !op.has("WIDE")) ? 2 : 1;
        }
        default: return 1;
    }
}

}  // namespace

void prepare_timing(Op& op)
{
    Timing& t = op.timing;
    const auto row = [&](std::vector<Rows>& rows, uint16_t index, uint16_t count) {
        if (index == ZERO || index == FIRST_UNIFORM + 63) return;
        rows.push_back({index, uint16_t(std::min<unsigned>(count, ROWS - index))});
    };
    const auto predicate = [&](std::vector<Rows>& rows, const Operand& o) {
        if (o.kind == Kind::Predicate && (o.index & 7) != TRUE) rows.push_back({uint16_t(ROWS + o.index), 1});
    };
    for (unsigned i = 0; i < op.sources; i++) {
        const Operand& o = op.s[i];
        if (o.kind == Kind::Register) row(t.reads, o.index, width(op, true, i));
        if (o.kind == Kind::Memory || o.kind == Kind::Constant) row(t.reads, o.base, o.wide ? 2 : 1), row(t.reads, o.uniform, o.uniform_wide ? 2 : 1);
    }
    if (op.opcode->width == Width::PREDICATES)
        for (size_t i = op.outs; i < op.every.size(); i++) predicate(t.reads, op.every[i]);
    for (const Operand& o : op.in) predicate(t.reads, o);
    Operand guard;
    guard.kind = Kind::Predicate, guard.index = op.guard;
    predicate(t.reads, guard);
    if (op.out.kind == Kind::Register) row(t.writes, op.out.index, width(op, false, 0));
    for (const Operand& o : op.p) predicate(t.writes, o);
    if (op.opcode->width == Width::GROUP) t.interval = width(op, false, 0);
    else if (op.opcode->width == Width::MATRICES) t.interval = width(op, true, 0);
    else if (op.opcode->pipe == Pipe::TENSOR && op.opcode->width == Width::DOUBLE) t.interval = 16;
    t.latency = op.opcode->width == Width::GROUP ? uint16_t(width(op, false, 0) / 2 + 16) : op.opcode->latency;
    if (t.kind == Timing::PLAIN && !strcmp(op.opcode->way, "atomic")) t.kind = Timing::PASSES;
    else if (t.kind == Timing::PLAIN && op.store) t.kind = Timing::STORES;
}

void begin_timing(Warp& w)
{
    w.time = w.waited = 0;
    w.ready.assign(READY, 0);
    w.groups.assign(1, 0);
}

void before(Warp& w, const Op& op)
{
    uint32_t at = w.time;
    for (const Rows& rows : op.timing.reads)
        for (unsigned i = 0; i < rows.count; i++) at = std::max(at, w.ready[rows.first + i]);
    w.time = at, w.waited = 0;
}

void after(Warp& w, const Op& op)
{
    const uint32_t at = w.time + std::max<uint32_t>(op.timing.latency, w.waited);
    for (const Rows& rows : op.timing.writes)
        for (unsigned i = 0; i < rows.count; i++) w.ready[rows.first + i] = at;
    if (op.timing.kind == Timing::COPIES) w.groups.back() = std::max(w.groups.back(), at);
    if (op.timing.kind == Timing::CLOSES) w.groups.push_back(0);
    if (op.timing.kind == Timing::WAITS)
        for (size_t i = 0; i + 1 + op.timing.left < w.groups.size(); i++) w.time = std::max(w.time, w.groups[i]);
    w.time++;
}

void time_of_memory(Warp& w, const Op& op, uint32_t lanes, const uint64_t* at, bool shared)
{
    const bool stores = op.timing.kind == Timing::STORES;
    if (shared) {
        if (!stores) w.waited = std::max(w.waited, SHARED);
        return;
    }
    std::vector<uint64_t>& lines = w.block->lines;
    if (lines.empty()) lines.assign(LINES, 0);
    bool known = op.timing.kind == Timing::PLAIN, near = true;  // copies and atomics pass the first cache
    uint64_t last = 0;
    each(lanes, [&](unsigned l) {
        const uint64_t line = at[l] / 128;
        if (line == last) return;
        last = line;
        uint64_t &kept = lines[line % LINES], &further = second_cache[line % ALL_LINES];
        near &= further == line, further = line;
        if (stores) return;
        known &= kept == line, kept = line;
    });
    if (!stores) w.waited = std::max(w.waited, known ? FIRST_CACHE : near ? SECOND_CACHE : MEMORY);
}

void empty_second_cache() { second_cache.assign(ALL_LINES, 0); }

}  // namespace rung_machine
