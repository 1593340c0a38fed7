// Plain reads that a compare-and-swap verifies. A loop reads a number, computes another from it and swaps the two if
// the memory still holds the first: whatever other atomics did meanwhile is seen there. Such a read is no race with
// atomics, unless what it has read reaches memory by another way: before the swap, or after one that has failed. It may
// decide branches.
#include "machine.h"

#include <algorithm>
#include <bitset>
#include <set>
#include <unordered_set>

namespace rung_machine {

unsigned rows_written(const Op& op)
{
    if (op.space != Space::NONE) return std::max(1u, op.bytes / 4u);
    return op.opcode->width == Width::DOUBLE || op.has("64") || op.has("WIDE") ? 2 : 1;
}

namespace {

constexpr size_t MOST_STATES = 1 << 12;
using Rows = std::bitset<ROWS>;

struct State
{
    uint32_t pc;
    Rows made, copies, found;  // made of what was read; that itself; what the swap has found in its place
    uint32_t equal, differ;    // predicates that are true where both are the same, and where they are not

    bool operator==(const State& o) const
    {
        return pc == o.pc && made == o.made && copies == o.copies && found == o.found && equal == o.equal &&
               differ == o.differ;
    }
};
struct Hash
{
    size_t operator()(const State& s) const
    {
        const std::hash<Rows> of;
        return ((of(s.made) * 31 + of(s.copies)) * 31 + of(s.found)) * 31 + s.pc + (size_t(s.equal) << 20) +
               (size_t(s.differ) << 40);
    }
};

bool is_register(const Operand& o) { return o.kind == Kind::Register && o.index != ZERO; }
bool touches_memory(const Op& op) { return op.space != Space::NONE; }
bool is(const Op& op, const char* name) { return op.name == name; }
bool compares_and_swaps(const Op& op) { return op.has("CAS") || op.has("CAST"); }

bool any(const Rows& rows, const Operand& o, unsigned count)
{
    bool found = false;
    if (is_register(o))
        for (unsigned i = 0; i < count && o.index + i < ROWS; i++) found |= rows[o.index + i];
    if (o.kind == Kind::Memory || o.kind == Kind::Constant)
        found |= (o.base != ZERO && (rows[o.base] || (o.wide && rows[o.base + 1]))) ||
                 (o.uniform != ZERO && rows[o.uniform]);
    return found;
}

bool any_source(const Rows& rows, const Op& op, unsigned count)
{
    bool found = false;
    for (unsigned i = 0; i < op.sources; i++) found |= any(rows, op.s[i], count);
    return found;
}

// What it copies, if that is all that it does.
const Operand* moved(const Op& op)
{
    if (is(op, "MOV") || is(op, "UMOV") || is(op, "R2UR")) return &op.s[0];
    const bool adds_to_nothing = (is(op, "IMAD") || is(op, "UIMAD")) && !op.has("WIDE") && !op.has("HI") &&
                                 !op.has("X") && op.s[0].kind == Kind::Register && !is_register(op.s[0]);
    return adds_to_nothing && !op.s[2].negative ? &op.s[2] : nullptr;
}

void assign(Rows& rows, const Op& op, unsigned count, bool value, bool keeps)
{
    for (unsigned i = 0; is_register(op.out) && i < count && op.out.index + i < ROWS; i++)
        rows[op.out.index + i] = value || (keeps && rows[op.out.index + i]);
}

// The operands whose sum it writes; none if it does something else.
std::vector<const Operand*> terms(const Op& op)
{
    if (op.guard != TRUE || op.has("X")) return {};
    const bool constant = op.s[0].kind == Kind::Constant && op.s[0].base == ZERO && op.s[0].uniform == ZERO;
    if (is(op, "LDC") || is(op, "ULDC"))
        return constant ? std::vector<const Operand*>{&op.s[0]} : std::vector<const Operand*>();
    if (const Operand* const one = moved(op)) return {one};
    std::vector<const Operand*> found;
    const bool sum = is(op, "IADD3") || is(op, "UIADD3") || is(op, "VIADD");
    for (unsigned i = 0; sum && i < op.sources; i++) {
        if (op.s[i].negative || op.s[i].inverted) return {};
        found.push_back(&op.s[i]);
    }
    return found;
}

// The lower word of an address: what is added, each by the constant or the instruction that it comes from. Two
// instructions that the compiler gave different registers may have the same.
struct Place
{
    enum : uint64_t { CONSTANT = 1ull << 40, INSTRUCTION = 2ull << 40, REGISTER = 3ull << 40, SCALED = 4ull << 40 };
    std::multiset<uint64_t> of;
    uint32_t offset = 0;

    bool operator==(const Place& o) const { return of == o.of && offset == o.offset; }

    Place(const Program& program, const Op& op) : offset(uint32_t(op.s[0].offset))
    {
        const Operand& o = op.s[0];
        if (o.scale != 1)
            of.insert(SCALED | uint64_t(o.scale) << 32 | o.base);
        else if (o.base != ZERO)
            add(program, o.base, op.number);
        if (o.uniform != ZERO) add(program, o.uniform, op.number);
    }

    void add(const Program& program, uint16_t row, uint32_t before)
    {
        while (before-- > 0) {
            const Op& op = program.ops[before];
            if (!op.opcode || !is_register(op.out) || row < op.out.index || row >= op.out.index + rows_written(op))
                continue;
            const std::vector<const Operand*> sum = row == op.out.index ? terms(op) : std::vector<const Operand*>();
            if (sum.empty()) of.insert(INSTRUCTION | uint64_t(before) << 2 | uint64_t(row - op.out.index));
            for (const Operand* o : sum)
                if (is_register(*o))
                    add(program, o->index, before);
                else if (o->kind == Kind::Constant)
                    of.insert(CONSTANT | uint64_t(o->index) << 32 | uint32_t(o->offset));
                else if (o->kind == Kind::Number)
                    offset += o->value;
            return;
        }
        of.insert(REGISTER | row);
    }
};

// A comparison of what was read with what the swap has found.
void compare(State& s, const Op& op)
{
    for (const Operand& p : op.p) {
        if (p.kind != Kind::Predicate) continue;
        s.equal &= ~(1u << p.index), s.differ &= ~(1u << p.index);
    }
    const bool both = (any(s.copies, op.s[0], 1) && any(s.found, op.s[1], 1)) ||
                      (any(s.found, op.s[0], 1) && any(s.copies, op.s[1], 1));
    if (!both || op.p[0].kind != Kind::Predicate || op.p[0].index == TRUE) return;
    const bool alone = op.has("EX") || (op.ins && op.in[0].index == TRUE && !op.in[0].inverted);
    if (op.has("EQ") && op.has("AND"))
        s.equal |= 1u << op.p[0].index;
    else if ((op.has("NE") || op.has("NEU")) && (alone || op.has("OR")))
        s.differ |= 1u << op.p[0].index;
}

// Whether the guard says that both are the same: for the lanes that execute, or for those that do not.
bool says_equal(const State& s, const Op& op, bool executes)
{ return (op.guard_inverted == executes ? s.differ : s.equal) >> op.guard & 1; }

bool is_verified(const Program& program, const Op& read)
{
    const unsigned count = rows_written(read);
    const Place place(program, read);
    State first = {read.number + 1, {}, {}, {}, 0, 0};
    assign(first.made, read, count, true, false);
    first.copies = first.made;
    std::vector<State> open = {first};
    std::unordered_set<State, Hash> known;
    bool verified = false;
    while (!open.empty()) {
        State s = open.back();
        open.pop_back();
        while (s.made.any() && s.pc < program.ops.size()) {
            if (known.size() >= MOST_STATES) return false;
            if (!known.insert(s).second) break;
            const Op& op = program.ops[s.pc++];
            if (!op.opcode) return false;
            const bool always = op.guard == TRUE;
            if (always && op.guard_inverted) continue;
            if (says_equal(s, op, true)) continue;  // what it uses is verified
            if (compares_and_swaps(op)) {
                if (any(s.made, op.s[0], 1)) return false;
                const bool by_it = any(s.copies, op.s[1], 1) && (op.has("CAST") || Place(program, op) == place);
                if (by_it && op.has("CAST")) return true;  // a loop that the compiler has made of an atomic
                if (!by_it && any_source(s.made, op, rows_written(op))) return false;
                assign(s.made, op, rows_written(op), false, !always),
                    assign(s.copies, op, rows_written(op), false, !always);
                if (by_it) verified = true, s.found.reset(), assign(s.found, op, rows_written(op), true, false);
            } else if (touches_memory(op) || is(op, "RET") || is(op, "BRX")) {
                if (any_source(s.made, op, rows_written(op)) || is(op, "RET") || is(op, "BRX")) return false;
                for (Rows* rows : {&s.made, &s.copies, &s.found}) assign(*rows, op, rows_written(op), false, !always);
            } else if (is(op, "BRA")) {
                State taken = s;
                taken.pc = op.target;
                open.push_back(taken);
                if (always && !op.ins) break;
            } else if (is(op, "EXIT")) {
                if (always) break;
            } else {
                const Operand* const copied = moved(op);
                compare(s, op);
                assign(s.copies, op, rows_written(op), copied && any(s.copies, *copied, 1), !always);
                assign(s.found, op, rows_written(op), copied && any(s.found, *copied, 1), !always);
                assign(s.made, op, rows_written(op), any_source(s.made, op, rows_written(op)), !always);
            }
            if ((is(op, "BRA") || is(op, "EXIT")) && says_equal(s, op, false)) break;
        }
    }
    return verified;
}

}  // namespace

void mark_verified_reads(Program& program)
{
    bool swaps = false;
    for (const Op& op : program.ops) swaps |= op.opcode && compares_and_swaps(op);
    for (Op& op : program.ops) {
        const bool plain = swaps && op.opcode && touches_memory(op) && op.direction == Direction::READ &&
                           is_register(op.out) && op.sources && op.s[0].kind == Kind::Memory;
        if (plain && !(op.flags & READ_ONLY_CACHE) && is_verified(program, op)) op.flags |= VERIFIED;
    }
}

}  // namespace rung_machine
