// Whether a number that nothing has written is used: by a branch, an address, an atomic or a store to global memory.
// Until then it may be moved, computed with and kept in shared and local memory. What depends on it is found by
// executing an instruction with other numbers in its place. Handlers are called through those here once a launch has
// read such a number, so that other launches pay nothing.
#include <stdio.h>

#include <bitset>

#include "machine.h"

namespace rung_machine {
namespace {

std::vector<Handler> plain;  // the handlers of the program's instructions; none: nothing is followed
std::vector<Fault> reads;    // by which undefined numbers came
struct Kept
{ uint32_t bits, read; };
std::unordered_map<uint64_t, Kept> words;  // of shared and local memory, by their address in the host's memory

constexpr unsigned MOST_ROWS = 8;  // that an operand has

bool is_within(uint16_t part, uint16_t first, unsigned count)
{ return first != ZERO && part >= first && part < first + count && (part < FIRST_UNIFORM) == (first < FIRST_UNIFORM); }

bool is_register(const Operand& o) { return o.kind == Kind::Register && o.index != ZERO; }

bool touches(const Operand& o, uint16_t part, unsigned count)
{
    switch (o.kind) {
    case Kind::Register: return is_within(part, o.index, count);
    case Kind::Predicate: return part == ROWS + o.index;
    case Kind::Memory:
    case Kind::Constant: return is_within(part, o.base, 1 + o.wide) || is_within(part, o.uniform, 1 + o.uniform_wide);
    case Kind::Other: return part >= ROWS;  // all predicates
    default: return false;
    }
}

void set_undefined(Warp& w, uint32_t row, uint32_t lanes, uint32_t undefined, uint32_t read)
{
    auto& parts = w.undefined;
    auto found = std::find_if(parts.begin(), parts.end(), [&](const Undefined& u) { return u.part == row; });
    if (found == parts.end()) {
        if (undefined) parts.push_back({row, undefined, read});
        return;
    }
    found->lanes = (found->lanes & ~lanes) | undefined;
    if (undefined) found->read = read;
    if (!found->lanes) parts.erase(found);
}

void use(const Op& op, uint32_t read)
{
    Fault fault = reads[read];
    if (launch.unwritten[fault.space].kind != RUNG_NO_FAULT) return;
    const auto& places = launch.program->places;  // of lines
    const size_t at = size_t(fault.at.instruction);
    if (op.number != at && (at >= places.size() || places[at] != places[op.number]))
        snprintf(fault.text, sizeof fault.text, "reads what nothing has written, and uses it {%u}", op.number);
    launch.unwritten[fault.space] = fault;
}

// What an operand is, for the register of a pair that it is compared with.
void copy_operand(const Warp& w, const Op& op, const Operand& o, unsigned half, uint32_t* to)
{
    const bool pair = op.opcode->width == Width::DOUBLE;
    Row scratch;
    const uint32_t* from = w.row(o, scratch);
    if (pair && is_register(o)) from += half * WARP;
    if (pair && o.kind == Kind::Constant) from = indexed_constant(w, o, scratch, int32_t(4 * half));
    memcpy(to, from, sizeof(Row));
    uint64_t bits;
    memcpy(&bits, &o.exact, sizeof bits);
    if (pair && o.kind == Kind::Number) std::fill(to, to + WARP, uint32_t(bits >> 32 * half));
}

// Executes what touches registers and predicates alone several times, the last time as it is.
void compute(Warp& w, const Op& op, uint32_t lanes)
{
    std::vector<Undefined> touched;
    bool registers = false, predicates = false;
    for (const Undefined& u : w.undefined) {
        bool is = u.part == ROWS + op.guard;
        for (const Operand& o : op.every) is |= touches(o, u.part, MOST_ROWS);
        if (!is) continue;
        bool exactly = false;  // not only among the registers that an operand may have
        for (const Operand& o : op.every) exactly |= touches(o, u.part, 1);
        touched.insert(exactly ? touched.begin() : touched.end(), u);
        (u.part < ROWS ? registers : predicates) = true;
    }
    if (touched.empty()) return plain[op.number](w, op, lanes);

    std::bitset<ROWS> watched;
    for (const Operand& o : op.every)
        for (unsigned i = 0; i < MOST_ROWS && o.kind == Kind::Register; i++)
            if (is_within(uint16_t(o.index + i), o.index, MOST_ROWS)) watched[o.index + i] = true;
    std::vector<uint16_t> rows;
    for (uint16_t row = 0; row < ROWS; row++)
        if (watched[row] && row != ZERO && row != SINK) rows.push_back(row);
    std::vector<std::array<uint32_t, WARP>> before(rows.size()), made[2];
    std::array<uint32_t, PREDICATES> predicates_before, predicates_made[2] = {};
    const auto copy = [&](std::vector<std::array<uint32_t, WARP>>& to, std::array<uint32_t, PREDICATES>& p) {
        to.resize(rows.size());
        for (size_t i = 0; i < rows.size(); i++) memcpy(to[i].data(), w.r[rows[i]], sizeof(Row));
        memcpy(p.data(), w.p, sizeof w.p);
    };
    copy(before, predicates_before);
    std::vector<std::array<uint32_t, WARP>> differs(rows.size());
    std::array<uint32_t, PREDICATES> predicates_differ = {};
    bool any = false;
    const auto execute = [&](uint32_t which) {
        plain[op.number](w, op, which);
        copy(made[any], predicates_made[any]);
        for (size_t i = 0; any && i < rows.size(); i++)
            for (unsigned l = 0; l < WARP; l++) differs[i][l] |= made[0][i][l] ^ made[1][i][l];
        for (unsigned i = 0; any && i < PREDICATES; i++)
            predicates_differ[i] |= predicates_made[0][i] ^ predicates_made[1][i];
        any = true;
        for (size_t i = 0; i < rows.size(); i++) memcpy(w.r[rows[i]], before[i].data(), sizeof(Row));
        memcpy(w.p, predicates_before.data(), sizeof w.p);
    };
    // Zero and large numbers of either sign, as integers and as floats; and for comparisons the other operands.
    static const uint32_t NUMBERS[] = {0, 0x7f7fffff, 0xff7fffff};
    const unsigned ways = !registers ? 1 : 3 + (op.outs ? op.sources : 0);
    for (unsigned way = 0; way < ways; way++)
        for (unsigned flipped = 0; flipped <= predicates; flipped++) {
            uint32_t which = lanes;
            Row values[2];
            for (unsigned half = 0; half < 2; half++)
                if (way < 3)
                    std::fill(values[half], values[half] + WARP, NUMBERS[way]);
                else
                    copy_operand(w, op, op.s[way - 3], half, values[half]);
            for (const Undefined& u : touched)
                if (u.part < ROWS)
                    each(u.lanes, [&](unsigned l) { w.r[u.part][l] = values[u.part & 1][l]; });
                else if (flipped) {
                    w.p[u.part - ROWS] ^= u.lanes;
                    if (u.part == ROWS + op.guard && !op.uniform) which ^= u.lanes & w.split().lanes;
                }
            execute(which);
        }
    execute(lanes);
    for (size_t i = 0; i < rows.size(); i++) memcpy(w.r[rows[i]], made[1][i].data(), sizeof(Row));
    memcpy(w.p, predicates_made[1].data(), sizeof w.p);
    const auto set = [&](uint32_t part, uint32_t undefined) {
        uint32_t read = touched.front().read;
        bool was = false;
        for (const Undefined& u : touched)
            if (u.part == part) was = true, read = part == op.out.index ? read : u.read;
        if (was || undefined) set_undefined(w, part, ALL, undefined, read);
    };
    for (size_t i = 0; i < rows.size(); i++) set(rows[i], where([&](unsigned l) { return differs[i][l] != 0; }));
    for (unsigned i = 0; i < PREDICATES; i++) set(ROWS + i, predicates_differ[i]);
}

// The host's address of the word that a lane's access of shared, local or generic memory begins in; 0: in global
// memory.
uint64_t word_of(Warp& w, const Op& op, unsigned lane)
{
    const uint64_t window = op.space == Space::SHARED ? SHARED_WINDOW : op.space == Space::LOCAL ? LOCAL_WINDOW : 0;
    const uint64_t generic = window | address(w, op.s[0], lane);
    bool shared;
    return generic >> 48 ? uint64_t(place(w, generic, lane, op.bytes, shared)) / 4 * 4 : 0;
}

unsigned rows_of(const Op& op) { return std::max(1u, op.bytes / 4u); }

// What may not be undefined: guards, addresses, conditions, and what leaves the chip.
void require_defined(const Warp& w, const Op& op, uint32_t lanes, bool stores)
{
    for (size_t i = 0; i < w.undefined.size(); i++) {
        const Undefined& u = w.undefined[i];
        bool used = u.part == ROWS + op.guard && u.lanes & w.split().lanes;
        if (u.lanes & lanes)
            for (const Operand& o : op.every) {
                const bool written = op.opcode->writes_register && o.kind == Kind::Register && o.index == op.out.index;
                const bool kept = stores && o.kind == Kind::Register;
                used |= !written && !kept && o.kind != Kind::Other && touches(o, u.part, rows_of(op));
            }
        if (u.lanes & lanes && op.sources && op.s[0].kind == Kind::Memory) used |= touches(op.s[0], u.part, 1);
        if (used) use(op, u.read);
    }
}

void store(Warp& w, const Op& op, uint32_t lanes)
{
    const Operand& from = op.s[1];
    uint64_t at[WARP];
    each(lanes, [&](unsigned l) { at[l] = word_of(w, op, l); });
    plain[op.number](w, op, lanes);
    for (unsigned i = 0; i < rows_of(op); i++) {
        const auto found = std::find_if(w.undefined.begin(), w.undefined.end(), [&](const Undefined& u) {
            return is_register(from) && is_within(u.part, uint16_t(from.index + i), 1);
        });
        const uint32_t undefined = found == w.undefined.end() ? 0 : found->lanes & lanes;
        each(words.empty() ? undefined : lanes, [&](unsigned l) {
            if (!at[l] && undefined >> l & 1) use(op, found->read);
            if (!at[l]) return;
            if (!(undefined >> l & 1)) return void(words.erase(at[l] + 4 * i));
            uint32_t bits;
            memcpy(&bits, reinterpret_cast<const void*>(at[l] + 4 * i), sizeof bits);
            words[at[l] + 4 * i] = {bits, found->read};
        });
    }
}

const Kept* kept_at(uint64_t at)
{
    const auto found = words.find(at);
    const bool is = found != words.end() && !memcmp(reinterpret_cast<const void*>(at), &found->second.bits, 4);
    return is ? &found->second : nullptr;
}

void load(Warp& w, const Op& op, uint32_t lanes)
{
    uint64_t at[WARP] = {};
    if (!words.empty()) each(lanes, [&](unsigned l) { at[l] = word_of(w, op, l); });
    plain[op.number](w, op, lanes);
    for (unsigned i = 0; i < rows_of(op); i++)
        each(where([&](unsigned l) { return at[l] != 0; }), [&](unsigned l) {
            if (const Kept* const kept = kept_at(at[l] + 4 * i))
                set_undefined(w, uint16_t(op.out.index + i), 1u << l, 1u << l, kept->read);
        });
}

void follow(Warp& w, const Op& op, uint32_t lanes)
{
    const bool products = op.opcode->pipe == Pipe::TENSOR && op.opcode->width != Width::GROUP;
    if (op.computes || (products && op.space == Space::NONE))
        return w.undefined.empty() ? plain[op.number](w, op, lanes) : compute(w, op, lanes);
    const bool moves = op.way == Way::PLAIN || op.way == Way::GENERIC;
    if (!w.undefined.empty()) require_defined(w, op, lanes, moves && op.store);
    for (unsigned i = 0; op.opcode->writes_register && !w.undefined.empty() && i < rows_of(op); i++)
        set_undefined(w, uint16_t(op.out.index + i), lanes, 0, 0);
    if (!moves) return plain[op.number](w, op, lanes);
    op.store ? store(w, op, lanes) : load(w, op, lanes);
}

}  // namespace

void note_unwritten(Warp& w, const Op& op, unsigned lane, const Fault& read)
{
    const auto same = [&](const Fault& f) { return f.at.instruction == read.at.instruction && f.space == read.space; };
    const auto known = std::find_if(reads.begin(), reads.end(), same);
    const uint32_t number = uint32_t(known - reads.begin());
    if (known == reads.end()) reads.push_back(read);
    if (op.way != Way::PLAIN && op.way != Way::GENERIC) return use(op, number);
    if (plain.empty())
        for (Op& one : launch.program->ops) plain.push_back(one.run), one.run = follow;
    for (unsigned i = 0; i < rows_of(op) && op.out.index != ZERO; i++)
        set_undefined(w, uint16_t(op.out.index + i), 1u << lane, 1u << lane, number);
}

void use_words(const void* from, size_t bytes)
{
    for (uint64_t at = uint64_t(from) / 4 * 4; !words.empty() && at < uint64_t(from) + bytes; at += 4)
        if (const Kept* const kept = kept_at(at)) use(*executing, kept->read);
}

void end_undefined()
{
    for (size_t i = 0; i < plain.size(); i++) launch.program->ops[i].run = plain[i];
    plain.clear(), reads.clear(), words.clear();
}

}  // namespace rung_machine
