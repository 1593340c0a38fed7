// Which instructions acquire or release within a block: nothing in their opcodes says so. Behind what acquires within
// a block ptxas leaves a NOP, where it has CCTL.IVALL for wider scopes, and behind the initialisation of byte barriers
// for a cluster; a store that releases stands behind a MEMBAR. In shared memory strong accesses look like plain ones.
#include "machine.h"

namespace rung_machine {
namespace {

bool accesses_memory(const Op& op)
{ return op.space != Space::NONE && op.space != Space::CONSTANT && op.space != Space::LOCAL; }

bool is_shared_load(const Op& op)
{ return op.space == Space::SHARED && op.way == Way::PLAIN && op.direction == Direction::READ; }

void make_strong(Op& op) { op.flags |= STRONG | WITHIN_BLOCK; }

void mark_nop(Op& nop, Op& last)
{
    if (last.name == "SYNCS" && last.has("EXCH")) nop.flags |= INITIALISES;
    const bool strong = last.way == Way::ATOMIC || last.flags & STRONG;
    if (last.direction == Direction::WRITE || !(is_shared_load(last) || strong)) return;
    nop.flags |= ACQUIRES;
    if (is_shared_load(last)) make_strong(last);
}

// A loop that does nothing but read one word of shared memory waits for another thread.
void mark_polls(std::vector<Op>& ops)
{
    for (size_t end = 0; end < ops.size(); end++) {
        if (ops[end].name != "BRA" || ops[end].target > end || ops[end].target == 0) continue;
        Op* load = nullptr;
        bool only = true;
        for (size_t i = ops[end].target; i < end; i++) {
            Op& op = ops[i];
            only &= op.way != Way::FENCE && op.opcode && (op.opcode->pipe != Pipe::CBU || op.name == "NANOSLEEP");
            if (!accesses_memory(op)) continue;
            only &= is_shared_load(op) && !load;
            load = &op;
        }
        if (only && load) make_strong(*load);
    }
}

bool writes_predicate(const Op& op, uint16_t number)
{
    for (unsigned i = 0; i < op.outs; i++)
        if (op.p[i].kind == Kind::Predicate && op.p[i].index == number) return true;
    return false;
}

// The instruction before another one that has written a register.
const Op* writer_of(const std::vector<Op>& ops, size_t before, uint16_t number)
{
    constexpr size_t MOST = 64;
    for (size_t i = before; i-- > (before > MOST ? before - MOST : 0);) {
        const bool votes = ops[i].name == "VOTE" || ops[i].name == "VOTEU";
        const Operand& out = votes ? ops[i].every.front() : ops[i].out;
        if (out.kind == Kind::Register && out.index == number) return &ops[i];
    }
    return nullptr;
}

// The vote of all active lanes of which FLO has found the first, where an instruction compares that with a lane.
const Op* vote_behind(const std::vector<Op>& ops, const Op& compares)
{
    for (unsigned i = 0; i < 2; i++) {
        const Op* const first = writer_of(ops, compares.number, compares.s[i].index);
        if (!first || (first->name != "FLO" && first->name != "UFLO")) continue;
        const Op* const vote = writer_of(ops, first->number, first->s[0].index);
        if (vote && vote->name.find("VOTE") == 0 && vote->has("ANY") && vote->every.back().index % 8 == TRUE &&
            !vote->every.back().inverted)
            return vote;
    }
    return nullptr;
}

// Atomics of all lanes to one address ptxas adds up: the first of the lanes that vote executes one for all, with the
// fences about it, by its guard or behind a branch of the others.
void mark_aggregated(std::vector<Op>& ops)
{
    const auto mark = [](Op& op) {
        if (op.way == Way::ATOMIC || op.way == Way::FENCE || op.name == "NOP" || op.name == "CCTL")
            op.flags |= FOR_ALL_LANES;
    };
    for (const Op& compares : ops) {
        if (compares.name != "ISETP" || compares.sources < 2 || !(compares.has("EQ") || compares.has("NE"))) continue;
        const Op* const vote = vote_behind(ops, compares);
        if (!vote) continue;
        ops[vote->number].flags |= FOR_ALL_LANES;
        const uint16_t guard = compares.p[0].index;
        for (size_t i = compares.number + 1; i < ops.size() && !writes_predicate(ops[i], guard); i++) {
            if (ops[i].guard != guard) continue;
            const bool others = ops[i].guard_inverted == compares.has("EQ");
            if (!others)
                mark(ops[i]);
            else if (ops[i].name == "BRA" || ops[i].name == "EXIT")
                for (size_t k = i + 1; k < ops.size() && (ops[i].name == "EXIT" || k < ops[i].target); k++) {
                    if (ops[k].name == "EXIT" && ops[k].guard == TRUE) break;
                    mark(ops[k]);
                }
        }
    }
}

// Whether an instruction reads a register; registers behind the first of an operand count for all but plain arithmetic.
bool may_read(const Op& op, uint16_t row)
{
    const bool stores = op.way == Way::PLAIN && op.direction == Direction::WRITE;
    const bool wide = op.has("64") || op.has("WIDE") || op.has("F64") || op.has("S64") || op.has("U64");
    const bool word = op.opcode && (op.opcode->width == Width::WORD || (op.opcode->width == Width::PAIR && !wide));
    const unsigned width = stores ? (op.bytes + 3) / 4 : !op.opcode ? 4 : word ? 1 : op.bytes > 8 ? 4 : 2;
    for (unsigned i = 0; i < op.sources; i++) {
        const Operand& o = op.s[i];
        const uint16_t first = o.kind == Kind::Memory ? o.base : o.index;
        const bool registers = o.kind == Kind::Memory || o.kind == Kind::Register;
        if (registers && first <= row && row < first + (o.kind == Kind::Memory ? 2 : width)) return true;
    }
    return false;
}

}  // namespace

bool may_read_beyond(const Program& program, const Op& load, unsigned first)
{
    if (load.direction != Direction::READ || load.way != Way::PLAIN || load.out.kind != Kind::Register) return false;
    for (unsigned word = first; word < load.bytes / 4u; word++) {
        const uint16_t row = uint16_t(load.out.index + word);
        std::vector<uint32_t> ways = {load.number + 1};
        std::vector<bool> seen(program.ops.size());
        while (!ways.empty()) {
            const uint32_t at = ways.back();
            ways.pop_back();
            if (at >= program.ops.size() || seen[at]) continue;
            seen[at] = true;
            const Op& op = program.ops[at];
            if (may_read(op, row)) return false;
            const bool always = op.guard == TRUE && !op.guard_inverted;
            const bool writes = op.opcode && op.opcode->writes_register && op.out.index <= row;
            if (always && writes && row < op.out.index + rows_written(op)) continue;
            if (op.opcode && op.opcode->pipe == Pipe::CBU && op.target) ways.push_back(op.target);
            const bool ends = op.name == "EXIT" || op.name == "RET" || (op.name == "BRA" && op.modifiers.empty());
            if (!(ends && always && op.every.size() < 2)) ways.push_back(at + 1);
        }
    }
    return true;
}

void mark_orders_within_blocks(Program& program)
{
    mark_polls(program.ops), mark_aggregated(program.ops);
    Op* last = nullptr;  // access to memory, with no meeting of lanes behind it
    bool fenced = false;
    for (Op& op : program.ops) {
        if (op.way == Way::FENCE)
            fenced = true, last = nullptr;
        else if (accesses_memory(op)) {
            if (fenced && op.space == Space::SHARED && op.way == Way::PLAIN && op.direction == Direction::WRITE)
                make_strong(op);
            fenced = false, last = &op;
        } else if (op.name == "NOP" && op.has("SYNC"))
            last = nullptr, fenced = false;
        else if (op.name == "NOP" && last)
            mark_nop(op, *last), last = nullptr;
        else if (op.name == "CCTL" && op.has("IVALL") && last && is_shared_load(*last))
            make_strong(*last);
        else if (op.opcode && op.opcode->pipe == Pipe::CBU)
            last = nullptr, fenced = false;
    }
}

}  // namespace rung_machine
