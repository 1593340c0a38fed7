// Branches, convergence, barriers, and the order in which warps and blocks run.
#include "machine.h"
#include "unwritten.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include <algorithm>

namespace rung_machine {

Launch launch;
const Op* executing;
const Warp* executing_warp;

void fail(const Warp& warp, Fault fault, const char* format, ...)
{
    if (executing) fault.at = where(warp, *executing, WARP);
    va_list rest;
    va_start(rest, format);
    vsnprintf(fault.text, sizeof fault.text, format, rest);
    va_end(rest);
    throw fault;
}

rung_where where(const Warp& warp, const Op& op, unsigned lane)
{
    rung_where found = {int32_t(op.number), {}, warp.rank * WARP + (lane < WARP ? lane : 0), lane};
    if (warp.block) memcpy(found.block, warp.block->index, sizeof found.block);
    return found;
}

void block_index(uint32_t unit, unsigned rank, uint32_t* index)
{
    const uint32_t *const c = launch.cluster, *const g = launch.grid;
    const uint64_t across = g[0] / c[0], down = g[1] / c[1];
    index[0] = uint32_t(unit % across * c[0] + rank % c[0]),
    index[1] = uint32_t(unit / across % down * c[1] + rank / c[0] % c[1]);
    index[2] = uint32_t(unit / (across * down) * c[2] + rank / (c[0] * c[1]));
}

bool Block::done() const
{
    for (const auto& warp : warps)
        if (warp->alive) return false;
    return true;
}

namespace {

void remove_lanes(Warp& w, uint32_t lanes)  // of the split that executes
{
    w.split().lanes &= ~lanes;
    if (!w.split().lanes) {
        w.splits.erase(w.splits.begin() + w.now);
        w.now = 0;
    }
}

// Splits that are at one instruction and wait for nothing any more become one.
void join(Warp& w, uint32_t lanes, uint32_t pc)
{
    Split whole{0, pc, Wait::None, 0, 0};
    for (size_t i = 0; i < w.splits.size();) {
        Split& s = w.splits[i];
        if (s.pc == pc && s.wait == Wait::None && s.lanes & lanes) {
            whole.lanes |= s.lanes;
            w.splits.erase(w.splits.begin() + long(i));
        } else
            i++;
    }
    if (whole.lanes) w.splits.insert(w.splits.begin(), whole), w.now = 0;
}

bool converged(Warp& w, size_t i)
{
    const Split at = w.splits[i];
    const auto mask = [&](const Split& s) { return w.converge[at.wanted][__builtin_ctz(s.lanes)]; };
    const bool together = at.wait == Wait::Together;
    const uint32_t wanted = w.alive & (together ? at.wanted : w.masks[mask(at)].lanes);
    uint32_t here = 0;
    // Lanes may have left since some came together; lanes of another call in a recursion have another mask.
    const auto waits = [&](const Split& s) {
        return s.wait == at.wait && s.lanes & wanted &&
               (together ? (s.wanted & w.alive) == wanted
                         : s.wanted == at.wanted && s.pc == at.pc && mask(s) == mask(at));
    };
    for (const Split& s : w.splits)
        if (waits(s)) here |= s.lanes;
    if ((here & wanted) != wanted) return false;
    for (Split& s : w.splits)
        if (waits(s)) s.wait = Wait::None;
    if (together) meet(w, here);
    join(w, here, at.pc);
    return true;
}

}  // namespace

void reconverge(Warp& w)
{
    for (bool again = true; again;) {
        again = false;
        for (size_t i = 0; i < w.splits.size() && !again; i++)
            if (w.splits[i].wait == Wait::Converge || w.splits[i].wait == Wait::Together) again = converged(w, i);
    }
}

namespace {

// ---- barriers of a block
// -------------------------------------------------------------------------------------------------

// A barrier of all threads wants each of them, at one place in their warp.
void require_all(const Block& block, const NamedBarrier& barrier, unsigned number)
{
    const unsigned threads = launch.block[0] * launch.block[1] * launch.block[2];
    for (const auto& warp : block.warps) {
        const unsigned first = warp->rank * WARP;
        const uint32_t all = threads - first >= WARP ? ALL : (1u << (threads - first)) - 1;
        const Split* one = nullptr;
        for (const Split& s : warp->splits) {
            if (s.wait != Wait::Barrier || s.wanted != number) continue;
            if (one && one->pc != s.pc) {
                executing = &launch.program->ops[s.pc - 1];
                fail(*warp, RUNG_BARRIER, "lanes of one warp wait at different barriers: %08x and %08x", one->lanes,
                     s.lanes);
            }
            one = &s;
        }
        if (barrier.count || !launch.strict || warp->alive == all) continue;
        for (const auto& other : block.warps)
            for (const Split& s : other->splits)
                if (s.wait == Wait::Barrier && s.wanted == number) {
                    executing = &launch.program->ops[s.pc - 1];
                    const unsigned gone = first + unsigned(__builtin_ctz(all & ~warp->alive));
                    const uint32_t* const size = launch.block;
                    fail(*other, RUNG_BARRIER,
                         "a __syncthreads that not every thread reaches: thread (%u, %u, %u) has returned",
                         gone % size[0], gone / size[0] % size[1], gone / (size[0] * size[1]));
                }
    }
}

void look_at_barrier(Block& block, unsigned number)
{
    if (!block.barriers[number]) return;
    NamedBarrier& barrier = *block.barriers[number];
    unsigned arrived = barrier.arrived, alive = 0, waiting = 0;
    for (const auto& warp : block.warps) {
        if (!warp->alive) continue;
        alive += WARP;
        const uint32_t mine = barrier.of_warp[warp->rank];
        waiting += mine != 0;
        if (mine && (mine & warp->alive) == warp->alive) arrived += WARP;
    }
    if ((!waiting && !barrier.arrived) || arrived < (barrier.count ? barrier.count : alive)) return;
    require_all(block, barrier, number);
    block.reduced = barrier.sum;
    const std::unique_ptr<NamedBarrier> complete = std::move(block.barriers[number]);
    for (const auto& warp : block.warps) {
        Warp& w = *warp;
        uint32_t here = 0, pc = 0;
        for (Split& s : w.splits)
            if (s.wait == Wait::Barrier && s.wanted == number) s.wait = Wait::None, here |= s.lanes, pc = s.pc;
        if (!here) continue;
        join(w, here, pc);
        leave_from(w, *complete, here);
    }
}

void ended(Warp& w)
{
    reconverge(w);
    for (unsigned i = 0; i < 16; i++) look_at_barrier(*w.block, i);
}

uint32_t value_of(const Warp& w, const Operand& o, uint32_t lanes)
{
    Row scratch;
    return w.row(o, scratch)[__builtin_ctz(lanes)];
}

void bar(Warp& w, const Op& op, uint32_t lanes)
{
    Block& block = *w.block;
    const Operand* sources[2] = {};
    unsigned count = 0;
    for (const Operand& o : op.every)
        if (o.kind != Kind::Predicate && count < 2) sources[count++] = &o;
    const auto number_at = [&](unsigned i) {
        return sources[i]->kind == Kind::Number ? sources[i]->value : value_of(w, *sources[i], lanes);
    };
    const unsigned number = number_at(0) & 15;
    if (!block.barriers[number]) block.barriers[number].reset(new NamedBarrier());
    NamedBarrier& barrier = *block.barriers[number];
    barrier.count = count > 1 ? number_at(1) : 0;
    note(Event::Barrier, w);
    if (w.recorded) record_barrier(w, number, barrier.count, op.has("ARV"));
    if (op.has("RED")) {
        const Operand* vote = nullptr;
        for (const Operand& o : op.every)
            if (o.kind == Kind::Predicate) vote = &o;
        const uint32_t yes = vote ? w.predicate(*vote) & lanes : lanes;
        if (op.has("POPC"))
            barrier.sum += unsigned(__builtin_popcount(yes));
        else if (op.has("OR"))
            barrier.sum |= yes ? ALL : 0;
        else
            barrier.sum = (barrier.arrived || barrier.sum ? barrier.sum : ALL) & (yes == lanes ? ALL : 1);
    }
    acquire_ticket(w, lanes), arrive_at(w, barrier, lanes);
    if (op.has("ARV"))
        barrier.arrived += WARP, step(w);
    else {
        barrier.of_warp[w.rank] |= lanes;
        w.split().wait = Wait::Barrier, w.split().wanted = number;
    }
    look_at_barrier(block, number);
}

void b2r(Warp& w, const Op& op, uint32_t lanes)
{
    const uint32_t made = w.block->reduced;
    map(w.target(op.out), lanes, [&](unsigned) { return made; });
    if (op.ins) w.set(op.in[0], made == ALL ? ALL : 0, lanes);
}

// ---- branches
// --------------------------------------------------------------------------------------------------------------

void go(Warp& w, uint32_t lanes, uint32_t target)
{
    Split& s = w.split();
    if (lanes == s.lanes) {
        s.pc = target;
        return;
    }
    s.lanes &= ~lanes;
    w.splits.push_back({lanes, target, Wait::None, 0, 0});
}

uint32_t narrowed(const Warp& w, const Op& op, uint32_t lanes)  // by a predicate among the operands
{
    for (const Operand& o : op.every)
        if (o.kind == Kind::Predicate) lanes &= w.predicate(o);
    return lanes;
}

// What lanes come together for; a jump of those that have parted stands ahead of it.
const Op& collective_behind(const Op& jump)
{
    const std::vector<Op>& ops = launch.program->ops;
    const auto found = std::find_if(ops.begin() + jump.number, ops.end(), [](const Op& op) {
        return op.name == "SHFL" || op.name == "VOTE" || op.name == "MATCH" || op.name == "REDUX";
    });
    return found == ops.end() ? jump : *found;
}

void require_own(const Warp& w, const Op& op, const uint32_t* masks, uint32_t lanes)
{
    each(lanes, [&](unsigned l) {
        if (masks[l] >> l & 1) return;
        Fault fault(RUNG_BARRIER);
        fault.at = where(w, op, l);
        snprintf(fault.text, sizeof fault.text, "the mask %08x of the lanes that come together lacks the lane itself",
                 masks[l]);
        throw fault;
    });
}

void bra(Warp& w, const Op& op, uint32_t lanes)
{
    if (op.modifiers.empty() && op.every.size() == 1) return go(w, lanes, op.target);
    lanes = narrowed(w, op, lanes);
    if (op.has("DIV")) {
        Row scratch;
        const uint32_t* const masks = w.row(op.every[0], scratch);
        require_own(w, collective_behind(op), masks, lanes);
        const uint32_t whole = masks[__builtin_ctz(lanes)] & w.alive;
        if ((lanes & whole) == whole) return;
        lanes = w.split().lanes;  // lanes whose masks differ have a false guard: then all go
    } else if (op.has("ANY"))
        lanes = lanes ? w.split().lanes : 0;
    else if (op.has("U"))
        lanes = lanes == w.split().lanes ? lanes : 0;
    if (lanes) go(w, lanes, op.target);
}

void go_to(Warp& w, uint32_t lanes, uint32_t address)
{
    const auto found = launch.program->at.find(address);
    if (found == launch.program->at.end())
        fail(w, RUNG_BOUNDS, "a branch goes to %#x, where there is no instruction", address);
    go(w, lanes, found->second);
}

// Each lane to the address in its register, beyond what stands behind it; a predicate may leave lanes out.
void go_to_registers(Warp& w, const Op& op, uint32_t lanes, uint32_t from)
{
    const Operand& address = op.every.back();
    const size_t last = op.text.find_last_of(' ');
    const char* const behind = op.text.c_str() + last + 1;
    const uint32_t offset = isdigit(*behind) || *behind == '-' ? uint32_t(strtol(behind, nullptr, 0)) : 0;
    Row scratch;
    const uint32_t* const a = w.row(address, scratch);
    lanes = narrowed(w, op, lanes);
    while (lanes) {
        const uint32_t to = a[__builtin_ctz(lanes)];
        uint32_t same = 0;
        each(lanes, [&](unsigned l) { same |= uint32_t(a[l] == to) << l; });
        go_to(w, same, from + to + offset);
        lanes &= ~same;
    }
}

void brx(Warp& w, const Op& op, uint32_t lanes) { go_to_registers(w, op, lanes, launch.program->addresses[w.pc()]); }

void call(Warp& w, const Op& op, uint32_t lanes)
{
    const Operand* const to = op.every.empty() ? nullptr : &op.every.back();
    lanes = narrowed(w, op, lanes);
    if (!lanes) return;
    if (to && to->kind == Kind::Number) {
        if (to->value && to->value < 16) return call_driver(w, DRIVER_WINDOW + to->value, lanes);
        return go_to(w, lanes, to->value);
    }
    if (!to || to->kind != Kind::Register)
        fail(w, RUNG_UNSUPPORTED, "%s is called, whose code is not there",
             op.text.substr(op.text.rfind(' ') + 1).c_str());
    const unsigned first = unsigned(__builtin_ctz(lanes));
    const uint64_t function = w.r[to->index][first] | uint64_t(w.r[to->index + 1][first]) << 32;
    if (op.has("ABS") && function >= DRIVER_WINDOW)
        call_driver(w, function, lanes);
    else
        go_to_registers(w, op, lanes, 0);
}

void ret(Warp& w, const Op& op, uint32_t lanes) { go_to_registers(w, op, lanes, 0); }

void exit_lanes(Warp& w, const Op& op, uint32_t lanes)
{
    lanes = narrowed(w, op, lanes);
    if (!lanes) return;
    w.alive &= ~lanes;
    if (!w.alive) look_at_end(w, op);
    remove_lanes(w, lanes);
    ended(w);
}

unsigned barrier_of(const Op& op)
{
    for (const Operand& o : op.every)
        if (o.kind == Kind::Other) return o.index & 15;
    return 0;
}

// The masks of convergence barriers are numbered; a number that no barrier holds, and no register, is used again.
uint32_t new_mask(Warp& w, uint32_t lanes)
{
    if (w.unused_masks.empty()) w.unused_masks.push_back(uint32_t(w.masks.size())), w.masks.emplace_back();
    const uint32_t number = w.unused_masks.back();
    w.unused_masks.pop_back();
    w.masks[number] = {lanes, 0, false};
    return number;
}

void hold_mask(Warp& w, unsigned barrier, unsigned lane, uint32_t number)
{
    uint32_t& held = w.converge[barrier][lane];
    w.masks[number].holders++;
    Warp::Mask& before = w.masks[held];
    if (held && !--before.holders && !before.saved) w.unused_masks.push_back(held);
    held = number;
}

void bssy(Warp& w, const Op& op, uint32_t lanes)
{
    lanes = narrowed(w, op, lanes);
    const unsigned number = barrier_of(op);
    const uint32_t mask = new_mask(w, lanes);
    each(lanes, [&](unsigned l) { hold_mask(w, number, l, mask); });
}

void bsync(Warp& w, const Op& op, uint32_t lanes)
{
    lanes = narrowed(w, op, lanes);
    if (!lanes) return;
    if (const uint32_t others = w.split().lanes & ~lanes)
        w.split().lanes = lanes, w.splits.push_back({others, w.pc(), Wait::None, 0, 0});
    Split& s = w.split();
    s.wait = Wait::Converge, s.wanted = barrier_of(op);
    if (w.converging(s.wanted, unsigned(__builtin_ctz(s.lanes))) == s.lanes)
        s.wait = Wait::None;
    else
        reconverge(w);
}

void leave(Warp& w, const Op& op, uint32_t lanes)  // BREAK
{
    lanes = narrowed(w, op, lanes);
    const unsigned number = barrier_of(op);
    each(lanes, [&](unsigned l) {
        w.masks[w.converge[number][l]].lanes &= ~(1u << l);
        hold_mask(w, number, l, new_mask(w, 1u << l));
    });
    reconverge(w);
}

void bmov(Warp& w, const Op& op, uint32_t lanes)
{
    const Operand &to = op.every[0], &from = op.every[1];
    if (to.kind == Kind::Other) {
        Row scratch;
        const uint32_t* const a = w.row(from, scratch);
        each(lanes, [&](unsigned l) { hold_mask(w, to.index & 15, l, a[l] < w.masks.size() ? a[l] : 0); });
    } else {
        uint32_t* const d = w.target(to);
        each(lanes, [&](unsigned l) { w.masks[d[l] = w.converge[from.index & 15][l]].saved = true; });
    }
}

// Lanes wait for those of their mask. With EXCLUSIVE the masks' lanes go on apart from each other.
void warpsync(Warp& w, const Op& op, uint32_t lanes)
{
    Row scratch;
    const uint32_t* const masks = op.has("ALL") || !op.sources ? nullptr : w.row(op.s[0], scratch);
    const uint32_t wanted = masks ? masks[__builtin_ctz(lanes)] : w.alive, whole = w.split().lanes;
    uint32_t others = 0, lacking = 0;
    if (masks && !op.has("EXCLUSIVE") && !op.has("COLLECTIVE")) require_own(w, op, masks, lanes);
    if (masks)
        each(whole,
             [&](unsigned l) { others |= uint32_t(masks[l] != wanted) << l, lacking |= masks[l] & w.alive & ~whole; });
    if (others && (lacking || op.has("EXCLUSIVE") || op.has("COLLECTIVE"))) {
        w.split().lanes &= ~others;
        while (others) {
            const uint32_t theirs = masks[__builtin_ctz(others)];
            uint32_t same = 0;
            each(others, [&](unsigned l) { same |= uint32_t(masks[l] == theirs) << l; });
            w.splits.push_back({same, w.pc(), theirs & w.alive & ~same ? Wait::Together : Wait::None, theirs, 0});
            others &= ~same;
        }
    }
    Split& s = w.split();
    s.wait = Wait::Together, s.wanted = wanted;
    if (s.wanted & w.alive & ~whole) return reconverge(w);
    s.wait = Wait::None;
    meet(w, wanted);
    for (uint32_t left = s.lanes == whole ? others : 0; left;) {  // those of other masks are all here, too
        const uint32_t theirs = masks[__builtin_ctz(left)];
        meet(w, theirs);
        each(left, [&](unsigned l) { left &= ~(uint32_t(masks[l] == theirs) << l); });
    }
}

// ptxas leaves a NOP where the lanes of a __syncwarp have come together (with SYNC: sass.py), behind what acquires
// within the block (acquires.cpp), and for latencies; the latter orders nothing.
void no_operation(Warp& w, const Op& op, uint32_t lanes)
{
    if (op.flags & INITIALISES) fence(w, OF_CLUSTER, lanes);
    if (op.flags & ACQUIRES) acquire_pending(w, OF_BLOCK, w.lanes_for(op, lanes));
    if (op.has("SYNC")) meet(w, lanes);
}

Scope scope_of(const Op& op) { return op.has("CTA") ? OF_BLOCK : OF_GPU; }
void memory_barrier(Warp& w, const Op& op, uint32_t lanes) { fence(w, scope_of(op), w.lanes_for(op, lanes)); }

void invalidate(Warp& w, const Op& op, uint32_t lanes)
{
    if (op.has("IVALL")) acquire_pending(w, OF_GPU, w.lanes_for(op, lanes));
}

void nothing(Warp&, const Op&, uint32_t) {}
void sleep(Warp& w, const Op&, uint32_t) { w.pauses = true; }
void trap(Warp& w, const Op&, uint32_t)
{
    fail(w, RUNG_TRAP,
         "the kernel traps (__trap(), or what the compiler knows to be undefined, such as a write to a null pointer)");
}

// ---- the order of execution
// ------------------------------------------------------------------------------------------------

uint32_t drawn;

uint32_t draw() { return drawn = drawn * 1664525u + 1013904223u, drawn ^ drawn >> 15; }

constexpr uint64_t MOST_IDLE = 4096;  // polls of each warp, between which nothing changes, until they are for ever
constexpr uint64_t TURN = 1024;       // instructions of a warp until the others have their turn

enum class Turn {
    Nothing,
    Waits,
    Ended
};  // it executed nothing; it executed something and waits; the others have their turn

// The next split has its turn. All of a warp share the uniform registers, which the compiler uses as if none were
// interrupted.
void interrupt(Warp& w)
{
    if (w.splits.size() < 2) return w.kept.clear();
    Split& s = w.split();
    if (s.wait == Wait::None && !s.kept) {
        uint64_t used = 0;
        for (const Split& other : w.splits) used |= 1ull << other.kept;
        const unsigned free = unsigned(__builtin_ctzll(~(used | 1)));
        w.kept.resize(std::max<size_t>(w.kept.size(), free));
        for (unsigned i = 0; i < UNIFORM; i++)
            w.kept[free - 1][i] =
                i < UNIFORMS ? w.r[FIRST_UNIFORM + i][0] : w.p[FIRST_UNIFORM_PREDICATE + i - UNIFORMS];
        s.kept = free;
    }
    w.now = unsigned((w.now + 1) % w.splits.size());
}

void resume(Warp& w, Split& s)
{
    const auto& kept = w.kept[s.kept - 1];
    for (unsigned i = 0; i < UNIFORM; i++)
        if (i < UNIFORMS)
            std::fill(w.r[FIRST_UNIFORM + i], w.r[FIRST_UNIFORM + i] + WARP, kept[i]);
        else
            w.p[FIRST_UNIFORM_PREDICATE + i - UNIFORMS] = kept[i];
    s.kept = 0;
}

Turn run_warp(Warp& w)
{
    Program& program = *launch.program;
    const uint64_t began = w.clock;
    w.gives_way = w.pauses = false;
    if (w.now < w.splits.size()) interrupt(w);
    uint64_t most = launch.order == 2 ? 1 + draw() % TURN : TURN;
    while (w.clock - began < most ||
           (w.splits.size() > 1 && w.clock - began < (most = TURN))) {  // lanes apart are not interrupted at once
        if (w.now >= w.splits.size()) w.now = 0;
        if (w.splits.empty()) break;
        if (w.split().wait != Wait::None) {
            size_t next = w.splits.size();
            for (size_t i = 0; i < w.splits.size(); i++)
                if (w.splits[i].wait == Wait::None && (next == w.splits.size() || w.splits[i].pc < w.splits[next].pc))
                    next = i;
            if (next == w.splits.size()) break;
            w.now = unsigned(next);
        }
        Split& s = w.split();
        if (s.kept) resume(w, s);
        if (s.pc >= program.ops.size()) fail(w, RUNG_BOUNDS, "the kernel's code ends without EXIT");
        const Op* next = &program.ops[s.pc];
        uint32_t lanes;
        for (;;) {  // behind what only computes these lanes have the next instruction, too
            const Op& op = *next;
            const uint32_t guard = w.p[op.guard];
            lanes = s.lanes & (op.guard_inverted ? ~guard : guard);
            executing = &op, executing_warp = &w;
            s.pc++, w.clock++;
            if (w.recorded) record(w, op, lanes);
            if (lanes) op.run(w, op, op.uniform ? ALL : lanes);
            if (!op.computes || s.pc >= program.ops.size() || w.clock - began >= most) break;
            program.tally[op.number].count(lanes);
            next = &program.ops[s.pc];
        }
        const Op& op = *next;
        if (w.gives_way) {
            w.split().pc--;
            if (w.recorded) forget_last(w);
            break;
        }
        program.tally[op.number].count(lanes);
        if (w.pauses) break;
        if (launch.interleaved && op.meets && draw() % 2) most = w.clock - began;
    }
    if (w.clock - began == (w.gives_way ? 1 : 0)) return Turn::Nothing;
    return w.pauses || w.clock - began >= most ? Turn::Ended : Turn::Waits;
}

struct Unit  // the blocks of a cluster, which run together
{
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<Block*> cluster;
};

std::vector<std::unique_ptr<Warp>> spare;
std::vector<std::vector<CellRow>> spare_cells;
std::vector<uint32_t> pattern;  // what memory holds that nothing has written
// NaN in every format, or huge values of either sign, by which their readers are known; negative zero; random bits.
void make_pattern(size_t bytes)
{
    static const uint32_t UPPER[] = {NOT_A_NUMBER, 0x7f7f0000u, 0xff7f0000u};
    const unsigned number = launch.poison ? (launch.poison - 1) % 5 : 0;
    pattern.resize(bytes / 4 + 1);
    launch.poisoned_with = number < 3 ? UPPER[number] : 0;
    if (launch.poisoned_with) return fill_unwritten(pattern.data(), pattern.size() * 4, 0, launch.poisoned_with);
    for (uint32_t& word : pattern) word = number == 3 ? 0x80008000u : draw();
}

void poison(uint8_t* memory, size_t bytes)
{
    if (launch.poison) memcpy(memory, pattern.data(), bytes);
}

void start(Unit& unit, uint64_t number)
{
    const uint32_t* const c = launch.cluster;
    const uint64_t across = launch.grid[0] / c[0], down = launch.grid[1] / c[1];
    const uint64_t x = number % across, y = number / across % down, z = number / (across * down);
    const unsigned threads = launch.block[0] * launch.block[1] * launch.block[2];
    Row unwritten;
    std::fill(unwritten, unwritten + WARP, NOT_A_NUMBER + 0x7c01);
    for (unsigned rank = 0; rank < c[0] * c[1] * c[2]; rank++) {
        unit.blocks.emplace_back(new Block());
        Block& block = *unit.blocks.back();
        unit.cluster.push_back(&block);
        block.index[0] = uint32_t(x * c[0] + rank % c[0]), block.index[1] = uint32_t(y * c[1] + rank / c[0] % c[1]);
        block.index[2] = uint32_t(z * c[2] + rank / (c[0] * c[1]));
        block.number = (uint64_t(block.index[2]) * launch.grid[1] + block.index[1]) * launch.grid[0] + block.index[0];
        block.in_cluster = rank, block.unit = uint32_t(number);
        block.shared.resize(launch.reserved_shared + (launch.shared_bytes + 15) / 16 * 16);
        poison(block.shared.data() + launch.reserved_shared, launch.shared_bytes);
        if (!spare_cells.empty()) block.cells = std::move(spare_cells.back()), spare_cells.pop_back();
        for (unsigned first = 0; first < threads; first += WARP) {
            if (spare.empty()) spare.emplace_back(new Warp());
            block.warps.push_back(std::move(spare.back()));
            spare.pop_back();
            Warp& w = *block.warps.back();
            memset(w.p, 0, sizeof w.p);
            if (w.masks.size() != 1) memset(w.converge, 0, sizeof w.converge), w.masks.assign(1, {0, 0, true});
            w.unused_masks.clear();
            if (launch.poison)  // registers are not those of the block before, nor zero
                for (unsigned i = 0; i < std::min<uint32_t>(launch.registers, ZERO); i++)
                    memcpy(w.r[i], unwritten, sizeof unwritten);
            memset(w.r[ZERO], 0, sizeof(Row));
            w.p[TRUE] = w.p[FIRST_UNIFORM_PREDICATE + TRUE] = ALL;
            w.alive = threads - first >= WARP ? ALL : (1u << (threads - first)) - 1;
            w.rank = first / WARP, w.block = &block, w.now = 0, w.clock = 0, w.polled = nullptr;
            w.splits.assign(1, {w.alive, 0, Wait::None, 0, 0});
            w.kept.clear();
            w.local.clear(), w.undefined.clear();
            w.registers = 0, w.timed_out = false;
            begin_record_of(w);
        }
    }
    for (auto& block : unit.blocks) {
        block->cluster = &unit.cluster;
        for (auto& warp : block->warps)
            if (launch.races) begin_order(*warp, unsigned(block->warps.size()) * block->in_cluster + warp->rank);
    }
}

bool finished(Unit& unit, uint64_t& instructions)
{
    for (auto& block : unit.blocks)
        if (!block->done()) return false;
    for (auto& block : unit.blocks) {
        for (auto& warp : block->warps) {
            instructions = std::max(instructions, warp->clock);
            spare.push_back(std::move(warp));
        }
        if (!block->cells.empty()) spare_cells.push_back(std::move(block->cells));
    }
    return true;
}

const Warp* nobody()
{
    if (spare.empty()) spare.emplace_back(new Warp());
    spare.front()->block = nullptr;
    return spare.front().get();
}

double seconds_now()
{
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

}  // namespace

constexpr size_t FEW = 4;  // barriers of bytes that are told even where nothing has begun

// What the barriers of a block wait for: who has not arrived, and where that is.
std::string barriers_of(const Block& block)
{
    std::string text;
    char one[160];
    for (unsigned number = 0; number < 16; number++) {
        if (!block.barriers[number]) continue;
        const NamedBarrier& barrier = *block.barriers[number];
        unsigned waiting = 0, alive = 0;
        std::string missing;
        for (const auto& warp : block.warps) {
            waiting += unsigned(__builtin_popcount(barrier.of_warp[warp->rank]));
            alive += unsigned(__builtin_popcount(warp->alive));
            if (barrier.of_warp[warp->rank] || missing.size() > 200) continue;
            snprintf(one, sizeof one, warp->splits.empty() ? " warp %u (has ended)" : " warp %u {%u}", warp->rank,
                     warp->splits.empty() ? 0
                     : warp->splits[0].pc ? warp->splits[0].pc - 1
                                          : 0);
            missing += one;
        }
        if (!waiting && !barrier.arrived) continue;
        snprintf(one, sizeof one, "; barrier %u of block (%u, %u, %u): %u of %u threads have arrived, without", number,
                 block.index[0], block.index[1], block.index[2], barrier.arrived + waiting,
                 barrier.count ? barrier.count : alive);
        text += one + (missing.empty() ? " anyone else" : missing);
    }
    for (const auto& [at, barrier] : block.bytes_barriers) {
        const bool begun = barrier.pending != barrier.expected || barrier.bytes || !barrier.phase;
        if (!begun && block.bytes_barriers.size() > FEW) continue;
        snprintf(one, sizeof one,
                 "; mbarrier at byte %d of shared memory, phase %u (parity %u): %d of %d arrivals and %ld bytes are "
                 "missing",
                 int(at) - int(launch.reserved_shared), barrier.phase, barrier.phase & 1, barrier.pending,
                 barrier.expected, barrier.bytes);
        text += one;
    }
    return text;
}

// What each warp of the resident blocks waits for; polling is a wait, too.
[[noreturn]] void tell_deadlock(const Unit& unit, const char* what)
{
    Fault fault(RUNG_DEADLOCK);
    std::string text = what;
    unsigned told = 0, at_barriers = 0, elsewhere = 0, mixed = 0;
    for (const auto& block : unit.blocks)
        for (const auto& warp : block->warps)
            for (const Split& s : warp->splits) {
                const Op& op =
                    launch.program
                        ->ops[std::min<size_t>(s.wait == Wait::Barrier || s.wait == Wait::Converge ? s.pc - 1 : s.pc,
                                               launch.program->ops.size() - 1)];
                (s.wait == Wait::Barrier ? at_barriers : elsewhere)++;
                if (s.wait == Wait::Barrier)
                    for (const Split& other : warp->splits) mixed += other.wait == Wait::Together;
                if (!told++) fault.at = where(*warp, op, WARP);
                if (told > 4) continue;
                char one[120];
                snprintf(one, sizeof one, "%s warp %u of block (%u, %u, %u), lanes %08x, %s {%u}", told > 1 ? ";" : ":",
                         warp->rank, block->index[0], block->index[1], block->index[2], s.lanes,
                         s.wait == Wait::Barrier ? "waits at the barrier"
                         : s.wait == Wait::None  ? "polls or waits"
                                                 : "waits for other lanes",
                         op.number);
                text += one;
            }
    for (const auto& block : unit.blocks)
        if (text.size() < sizeof fault.text / 2) text += barriers_of(*block);
    if (mixed || (at_barriers && !elsewhere)) fault.kind = RUNG_BARRIER;
    snprintf(fault.text, sizeof fault.text, "%s", text.c_str());
    throw fault;
}

struct Progress
{
    double began;                     // in seconds
    uint64_t all, ended = 0;          // units
    uint64_t steps = 0, longest = 0;  // instructions of warps: so far, and of one that has ended
};

// Whether no way leads from here to the end of the code.
bool cannot_end(const Split& split)
{
    const std::vector<Op>& ops = launch.program->ops;
    std::vector<bool> seen(ops.size());
    std::vector<size_t> ways = {split.pc};
    while (!ways.empty()) {
        const size_t at = ways.back();
        ways.pop_back();
        if (at >= ops.size()) return false;
        if (seen[at]) continue;
        seen[at] = true;
        const Op& op = ops[at];
        for (const char* leaves : {"EXIT", "RET", "BRX", "CALL", "BPT"})
            if (op.name == leaves) return false;
        const bool branches = op.name == "BRA",
                   always = op.guard == TRUE && op.modifiers.empty() && op.every.size() == 1;
        if (branches) ways.push_back(op.target);
        if (!branches || !always) ways.push_back(at + 1);
    }
    return true;
}

void mix_state(uint64_t& hash, const Warp& w)
{
    const auto mix = [&](uint32_t word) { hash = (hash ^ word) * 0x100000001b3u; };
    std::for_each(&w.r[0][0], &w.r[0][0] + ROWS * WARP, mix);
    std::for_each(w.p, w.p + PREDICATES, mix);
    std::for_each(w.local.begin(), w.local.end(), mix);
    for (const Split& s : w.splits) mix(s.lanes), mix(s.pc), mix(uint32_t(s.wait));
}

// Whether the warps, in turns, all wait, or come back to where they were, while memory stays the same. This executes at
// most a quarter of the instructions that the launch has `executed`, or 2^17.
bool repeat_or_wait(const std::vector<Warp*>& warps, uint64_t executed)
{
    constexpr unsigned MOST_ROUNDS = 4096;
    const uint64_t most = std::clamp<uint64_t>(executed / 4, 1 << 17, 1 << 24);
    const uint64_t changes = launch.changes;
    uint64_t before = 0, steps = 0;
    for (unsigned round = 0; round < MOST_ROUNDS && steps < most; round++) {
        bool wait = true, alive = false;
        uint64_t state = 0xcbf29ce484222325u;
        for (Warp* warp : warps) {
            if (!warp->alive) continue;
            const uint64_t clock = warp->clock;
            wait &= run_warp(*warp) == Turn::Nothing;
            steps += warp->clock - clock, alive |= warp->alive != 0;
            if (launch.changes != changes) return false;
            mix_state(state, *warp);
        }
        if (!alive || wait || state == before) return alive;
        if (!(round & (round - 1))) before = state;
    }
    return false;
}

// A kernel does not end if a warp cannot reach the end of its code, or if all warps wait or repeat what they do. One
// that goes on for very much longer than others have taken does not, either; another is only slow. It does not go on
// behind this.
constexpr uint64_t MUCH_LONGER = 256, LEAST_LONG = 1000;
bool is_endless(const std::vector<std::unique_ptr<Unit>>& resident, const Progress& progress)
{
    bool endless = false;
    std::vector<Warp*> warps;
    for (const auto& unit : resident)
        for (const auto& block : unit->blocks)
            for (const auto& warp : block->warps) {
                if (warp->alive) warps.push_back(warp.get());
                // Where blocks take turns, some of a persistent kernel end early, with no work left.
                endless |= !launch.interleaved && progress.longest >= LEAST_LONG &&
                           warp->clock > MUCH_LONGER * progress.longest;
                for (const Split& s : warp->splits) endless |= cannot_end(s);
            }
    if (endless || (!launch.strict && progress.ended + resident.size() < progress.all)) return endless;
    launch.order = 0, launch.interleaved = false;  // turns are of one length
    return repeat_or_wait(warps, progress.steps);
}

void require_work(const std::vector<std::unique_ptr<Unit>>& resident, const Progress& progress)
{
    if (launch.progress) launch.progress(progress.ended, progress.all);
    const bool late = !launch.steps && seconds_now() - progress.began > launch.seconds;
    if (!late && (!launch.steps || progress.steps <= launch.steps)) return;
    const double seconds = seconds_now() - progress.began;
    const auto amount = [&](double share) {
        char text[60];
        if (late)
            snprintf(text, sizeof text, "%.0f s of CPU time", share * seconds);
        else
            snprintf(text, sizeof text, "%.0f instructions of warps", share * double(progress.steps));
        return std::string(text);
    };
    const bool endless = is_endless(resident, progress);
    executing = nullptr;  // it is no instruction's fault
    if (!endless)
        fail(*nobody(), RUNG_UNFINISHED, "after %s %llu of %llu %s have ended%s%s", amount(1).c_str(),
             (unsigned long long)progress.ended, (unsigned long long)progress.all,
             launch.cluster[0] * launch.cluster[1] * launch.cluster[2] > 1 ? "clusters" : "blocks",
             progress.ended ? ": all of them would take some " : "",
             progress.ended ? amount(double(progress.all) / double(progress.ended)).c_str() : "");
    tell_deadlock(*resident.front(), ("the kernel does not end: it ran for " + amount(1)).c_str());
}

// Whether races are looked for in the next unit. Where fences order blocks, a check that leaves some out would tell of
// races that there are none.
constexpr uint64_t RACED_IN_SAMPLE = 16;
void limit_races(uint64_t steps, bool alone, uint64_t next)
{
    static bool in_sample;
    if (!next) in_sample = false;
    if (!launch.race_steps || steps < launch.race_steps) return;
    if (alone)
        launch.races = in_sample = !launch.program->orders_blocks && next % RACED_IN_SAMPLE == 0;
    else if (!in_sample)
        launch.races = false;
}

constexpr uint64_t BETWEEN_LOOKS = 16 * TURN;  // at the time, which takes as long as many instructions
constexpr unsigned MOST_POLLS = 8;             // rounds of a block until others have their turn
constexpr size_t TOGETHER =
    4;  // blocks, or clusters, that take turns in a random order where fences say that they may meet

void run_grid()
{
    const uint64_t all = uint64_t(launch.grid[0]) * launch.grid[1] * launch.grid[2] /
                         (launch.cluster[0] * launch.cluster[1] * launch.cluster[2]);
    const uint64_t units = records_only() ? chosen_units().size() : all;
    const bool shuffles = launch.order == 2,
               interleaved = launch.interleaved = shuffles && launch.program->orders_blocks;
    std::vector<uint32_t> places(shuffles ? units : 0);
    drawn = launch.seed * 2654435761u + 12345u;
    make_pattern(std::max(launch.shared_bytes, launch.local_bytes * WARP));
    drawn = launch.seed * 2654435761u + 12345u;  // the order is the same whatever was drawn for the pattern
    spare_cells.clear();
    for (uint32_t i = 0; i < places.size(); i++) {
        const uint32_t j = uint32_t(draw() % (i + 1));
        places[i] = i, std::swap(places[i], places[j]);
    }
    const auto place = [&](uint64_t n) {
        return records_only() ? chosen_units()[n] : shuffles ? places[n] : launch.order == 1 ? units - 1 - n : n;
    };
    std::vector<std::unique_ptr<Unit>> resident;
    uint64_t next = 0, looked = 0;  // the last: at the time, after so many steps
    Progress progress{seconds_now(), units};
    unsigned rounds = 0, busy_rounds = 0;
    uint64_t idle = 0, changes = 0;  // turns of warps that only polled, since something changed
    bool busy = false;  // a block computes: further ones, which take memory, begin where blocks wait, and now and then
    std::vector<Warp*> turns;
    while (next < units || !resident.empty()) {
        limit_races(progress.steps, resident.empty(), next);
        if (launch.cooperative || resident.empty() || (interleaved && resident.size() < TOGETHER) ||
            (!launch.strict && (!busy || ++busy_rounds % 64 == 0))) {
            do {
                if (next == units) break;
                resident.emplace_back(new Unit());
                start(*resident.back(), place(next++));
            } while (launch.cooperative || (interleaved && resident.size() < TOGETHER));
        }
        bool did_anything = busy = false;
        for (size_t i = 0; i < resident.size();) {
            Unit& unit = *resident[i];
            bool again;
            unsigned polls = 0;  // rounds in which nothing changed: its barriers may be those of a loop that waits
            do {
                again = false;
                const uint64_t known = launch.changes;
                if (++rounds % 1024 == 0) require_work(resident, progress);
                turns.clear();
                for (auto& block : unit.blocks)
                    for (auto& warp : block->warps) turns.push_back(warp.get());
                if (launch.order == 1) std::reverse(turns.begin(), turns.end());
                for (size_t k = turns.size(); shuffles && k > 1; k--) std::swap(turns[k - 1], turns[draw() % k]);
                for (Warp* warp : turns)
                    if (warp->alive) {
                        const uint64_t before = warp->clock;
                        const Turn turn = run_warp(*warp);
                        progress.steps = launch.executed += warp->clock - before;
                        if (launch.steps && progress.steps > launch.steps) require_work(resident, progress);
                        did_anything |= turn != Turn::Nothing, again |= turn == Turn::Waits;
                        busy |= turn == Turn::Ended && !warp->pauses;
                        idle = turn == Turn::Ended && warp->pauses && launch.changes == changes ? idle + 1
                               : turn == Turn::Nothing                                          ? idle
                                                                                                : 0;
                        changes = launch.changes;
                        if (idle > MOST_IDLE * turns.size() * resident.size() && (next == units || launch.strict))
                            tell_deadlock(unit, "all threads that go on poll what no longer changes");
                    }
                polls = launch.changes == known ? polls + 1 : 0;
                // Where blocks take turns, waiting warps have theirs with the others.
            } while (again && !interleaved && polls < MOST_POLLS);
            if (finished(unit, progress.longest))
                resident.erase(resident.begin() + long(i)), progress.ended++;
            else
                i++;
            if (progress.steps - looked > BETWEEN_LOOKS) looked = progress.steps, require_work(resident, progress);
        }
        if (!did_anything && (next == units || launch.strict) && !resident.empty())
            tell_deadlock(*resident.front(), "no thread can go on");
    }
}

namespace {

#define OF_CONTROL
#include "rows.h"

}  // namespace

void add_control(Table& table) { add_rows(table); }

}  // namespace rung_machine
