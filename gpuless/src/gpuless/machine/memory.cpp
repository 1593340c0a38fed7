// Loads, stores, atomics, constants; and what they cost: a request is one execution of an instruction by a warp.
#include "machine.h"
#include "unwritten.h"

#include <stdio.h>

#include <algorithm>

namespace rung_machine {

uint64_t address(const Warp& w, const Operand& o, unsigned lane)
{
    const auto of = [&](uint16_t row, bool wide) {
        if (row == ZERO) return uint64_t(0);
        return w.r[row][lane] | (wide ? uint64_t(w.r[row + 1][lane]) << 32 : 0);
    };
    const uint64_t made = of(o.base, o.wide) * o.scale + of(o.uniform, o.uniform_wide) + int64_t(o.offset);
    return o.wide || o.uniform_wide ? made : uint32_t(made);
}

void require_started(const Warp& w, unsigned lane, uint64_t at, bool write)
{
    if (!launch.races || w.block->cluster->front()->cluster_met) return;
    Fault fault(RUNG_RACE);
    fault.space = RUNG_SHARED_SPACE, fault.address = at & 0xffffff, fault.writes = write;
    fault.at = where(w, *executing, lane);
    snprintf(fault.text, sizeof fault.text, "%s the shared memory of another block of the cluster",
             write ? "writes" : "reads");
    snprintf(fault.lacks, sizeof fault.lacks, "before a barrier of the cluster has shown that it has started");
    throw fault;
}

static void addresses(const Warp& w, const Operand& o, uint64_t* at)
{
    const auto upper = [&](uint16_t row, bool wide) { return w.r[wide && row != ZERO ? row + 1 : ZERO]; };
    const uint32_t *low = w.r[o.base], *high = upper(o.base, o.wide);
    const uint32_t *more = w.r[o.uniform], *more_high = upper(o.uniform, o.uniform_wide);
    if (o.uniform == ZERO && o.wide && o.scale == 1)
        for (unsigned l = 0; l < WARP; l++) at[l] = (low[l] | uint64_t(high[l]) << 32) + uint64_t(int64_t(o.offset));
    else if (o.uniform == ZERO && !o.wide)
        for (unsigned l = 0; l < WARP; l++) at[l] = uint32_t(low[l] * o.scale + uint32_t(o.offset));
    else {
        const uint64_t every = o.wide || o.uniform_wide ? ~0ull : ~0u, offset = uint64_t(int64_t(o.offset));
        const unsigned shift = unsigned(__builtin_ctz(o.scale));
        for (unsigned l = 0; l < WARP; l++)
            at[l] =
                (((low[l] | uint64_t(high[l]) << 32) << shift) + (more[l] | uint64_t(more_high[l]) << 32) + offset) &
                every;
    }
}

uint8_t* shared_place(Warp& w, uint32_t at, unsigned bytes)
{
    Block* block = w.block;
    if (const uint32_t rank = at >> 24; rank != block->in_cluster) {
        if (rank >= block->cluster->size()) fail(w, RUNG_BOUNDS, "there is no block %u in the cluster", rank);
        block = (*block->cluster)[rank];
    }
    const uint32_t offset = at & 0xffffff, end = launch.reserved_shared + launch.shared_bytes;
    if (offset + bytes > end || offset < launch.first_shared) {
        const bool inside = offset < end && offset >= launch.first_shared;
        if (inside && executing && may_read_beyond(*launch.program, *executing, (end - offset + 3) / 4))
            return block->shared.data() + offset;
        Fault beyond(RUNG_BOUNDS);
        beyond.space = RUNG_SHARED_SPACE, beyond.address = inside ? end : offset, beyond.bytes = bytes;
        fail(w, beyond, "byte %d is beyond the block's %u bytes of shared memory",
             int(beyond.address) - int(launch.reserved_shared), launch.shared_bytes);
    }
    return block->shared.data() + offset;
}

namespace {

uint8_t* local_place(Warp& w, uint32_t at, unsigned lane, unsigned bytes)
{
    if (uint64_t(at) + bytes > launch.local_bytes)
        fail(w, RUNG_BOUNDS, "byte %d is beyond the thread's stack of %u bytes", int(at), launch.local_bytes);
    if (w.local.empty()) w.local.resize(size_t(launch.local_bytes) * WARP, launch.poison == 1 ? 0xff : 0);
    return w.local.data() + size_t(launch.local_bytes) * lane + at;
}

}  // namespace

uint8_t* place(Warp& w, uint64_t generic, unsigned lane, unsigned bytes, bool& shared)
{
    shared = generic >> 48 == SHARED_WINDOW >> 48;
    if (shared) return shared_place(w, uint32_t(generic), bytes);
    if (generic >> 48 == LOCAL_WINDOW >> 48) return local_place(w, uint32_t(generic), lane, bytes);
    if (generic >> 48 && launch.regions.empty())
        fail(w, RUNG_BOUNDS, "touches memory that belongs to no argument (address %#llx)", (unsigned long long)generic);
    return reinterpret_cast<uint8_t*>(generic);
}

const Region& region_of(uint64_t address)
{
    static const Region NONE = {0, 0, 0}, ALL_MEMORY = {0, ~0ull, 0};
    static const Region* last = &NONE;
    const std::vector<Region>& regions = launch.regions;
    if (regions.empty()) return ALL_MEMORY;
    if (last >= regions.data() && last < regions.data() + regions.size() && address >= last->from && address < last->to)
        return *last;
    const auto after = std::upper_bound(regions.begin(), regions.end(), address,
                                        [](uint64_t at, const Region& r) { return at < r.from; });
    if (after == regions.begin() || address >= (after - 1)->to) return NONE;
    return *(last = &*(after - 1));
}

void require_inside(const Warp& w, const Op& op, uint32_t lanes, const uint64_t* at, unsigned bytes, bool write)
{
    if (launch.regions.empty()) return;
    const Region& all = region_of(at[__builtin_ctz(lanes)]);
    if (all.to - all.from >= bytes && !(write && all.flags & INPUT_REGION)) {
        const uint64_t last = all.to - bytes - all.from;
        uint64_t outside = 0;  // in its upper bit: vectors have no comparison of such numbers
        for (unsigned l = 0; l < WARP; l++) {
            const uint64_t offset = at[l] - all.from;
            outside |= (offset | (last - offset)) & -uint64_t(lanes >> l & 1);
        }
        if (!(outside >> 63)) return;
    }
    each(lanes, [&](unsigned l) {
        const Region& one = region_of(at[l]);
        const bool inside = at[l] >= one.from && at[l] + bytes <= one.to && at[l] + bytes > at[l];
        if (inside && !(write && one.flags & INPUT_REGION)) return;
        Fault fault(RUNG_BOUNDS);
        fault.space = RUNG_GLOBAL_SPACE, fault.bytes = bytes, fault.writes = write, fault.at = where(w, op, l);
        fault.address = !inside && at[l] >= one.from && at[l] < one.to ? one.to : at[l];
        throw fault;
    });
}

// Of a constant: of 16 bits, which nvdisasm takes for a signed number.
static void constant_addresses(const Warp& w, const Operand& o, uint64_t* at)
{
    addresses(w, o, at);
    for (unsigned l = 0; l < WARP && o.offset < 0; l++) at[l] &= at[l] >> 16 == 0xffff ? 0xffff : ~0ull;
}

// A bank may end within a word.
uint32_t constant_word(unsigned number, uint64_t at)
{
    const std::vector<uint8_t>& bank = launch.bank[number];
    uint32_t value = 0;
    if (at < bank.size()) memcpy(&value, bank.data() + at, std::min<size_t>(4, bank.size() - at));
    return value;
}

// `beyond`: bytes, to the upper half of a pair.
const uint32_t* indexed_constant(const Warp& w, const Operand& o, Row& made, int32_t beyond)
{
    if (o.kind != Kind::Constant) return w.r[ZERO];
    if (o.base == ZERO && o.uniform == ZERO)
        std::fill(made, made + WARP, constant_word(o.index, uint64_t(int64_t(o.offset) + beyond)));
    else {
        uint64_t at[WARP];
        constant_addresses(w, o, at);
        for (unsigned l = 0; l < WARP; l++) made[l] = constant_word(o.index, at[l] + uint64_t(beyond));
    }
    return made;
}

// ---- costs
// ---------------------------------------------------------------------------------------------------------------

namespace {

constexpr unsigned SECTOR = 32, LINE = 128, BANKS = 32;

// Whether each active lane has the address of the lane beside it, or each that of the lane two further.
bool in_pairs(const uint64_t* at, uint32_t lanes)
{
    for (unsigned apart = 1; apart <= 2; apart++) {
        bool all = true;
        for (unsigned l = 0; l < WARP && all; l++)
            if (lanes >> l & 1 && lanes >> (l ^ apart) & 1 && at[l] != at[l ^ apart]) all = false;
        if (all) return true;
    }
    return false;
}

// Accesses of 8 bytes pass by half warps and of 16 bytes by quarters, two together where neighbours read the same;
// lanes that read one word share it.
void cost_of_banks(const uint64_t* at, Cost& cost)
{
    uint32_t groups[4];
    unsigned count = 0;
    if (cost.bytes <= 4)
        groups[count++] = cost.lanes;
    else {
        const unsigned wide = cost.bytes <= 8 ? WARP : WARP / 2;
        for (unsigned first = 0; first < WARP; first += wide) {
            const uint32_t lanes = cost.lanes & (wide == WARP ? ALL : 0xffffu << first);
            if (in_pairs(at, lanes))
                groups[count++] = lanes;
            else
                for (unsigned half = 0; half < 2; half++)
                    groups[count++] = lanes & ((1u << wide / 2) - 1) << (first + half * wide / 2);
        }
    }
    for (unsigned g = 0; g < count; g++) {
        uint64_t word[WARP * 5];
        unsigned words = 0;
        each(groups[g], [&](unsigned l) {
            for (uint64_t n = at[l] / 4; n <= (at[l] + cost.bytes - 1) / 4 && words < WARP * 5; n++) word[words++] = n;
        });
        if (!words) continue;
        std::sort(word, word + words);
        words = unsigned(std::unique(word, word + words) - word);
        unsigned used[BANKS] = {}, most = 0;
        for (unsigned i = 0; i < words; i++) most = std::max(most, ++used[word[i] % BANKS]);
        cost.wavefronts += most, cost.ideal_wavefronts++;
    }
}

void cost_of_sectors(const uint64_t* addresses, Cost& cost)
{
    uint64_t at[WARP], sector = 0, line = 0, end = 0;  // the first not yet counted
    unsigned count = 0;
    each(cost.lanes, [&](unsigned l) { at[count++] = addresses[l]; });
    if (!std::is_sorted(at, at + count)) std::sort(at, at + count);
    for (unsigned i = 0; i < count; i++) {
        const uint64_t after = at[i] + cost.bytes, s = std::max(sector, at[i] / SECTOR),
                       n = std::max(line, at[i] / LINE), from = std::max(end, at[i]);
        sector = std::max(sector, (after - 1) / SECTOR + 1), line = std::max(line, (after - 1) / LINE + 1);
        if (sector > s) cost.sectors += uint32_t(sector - s);
        if (line > n) cost.lines += uint32_t(line - n);
        if (after > from) cost.unique_bytes += uint32_t(after - from), end = after;
    }
    cost.ideal_sectors = (cost.unique_bytes + SECTOR - 1) / SECTOR;
}

}  // namespace

// What a request costs beyond the ideal; of equal ones the larger is worse.
uint64_t badness(const Cost& cost)
{
    const uint32_t all = cost.shared ? cost.wavefronts : cost.sectors,
                   ideal = cost.shared ? cost.ideal_wavefronts : cost.ideal_sectors;
    return uint64_t(all - ideal) << 32 | all;
}

struct Traced
{ uint64_t instruction, block, warp, lanes, bytes, place, at[WARP]; };
struct Happened
{ uint32_t event, warp, amount, serial; };
std::vector<Traced> traced;
std::vector<Happened> happened;
size_t trace_room;

namespace {

constexpr size_t MOST_EVENTS = 4096;
size_t kept[3];  // requests of the trace by their kind, each of which has a third of the room

// Stores to global memory of the first block, of the others, and what else the first block asks for.
void trace(const Warp& w, const Op& op, uint32_t lanes, const uint64_t* at, unsigned bytes, bool shared, bool store,
           unsigned swizzle)
{
    const uint64_t block = w.block->number;
    if (traced.empty()) std::fill(kept, kept + 3, 0);
    const bool out = store && !shared;
    size_t& count = kept[!out ? 2 : block != 0];
    if ((block && !out) || count >= trace_room / 3) return;
    count++;
    traced.push_back(
        {op.number, block, w.rank, lanes, bytes, uint64_t(shared) | uint64_t(store) << 1 | swizzle << 2, {}});
    each(lanes, [&](unsigned l) { traced.back().at[l] = at[l]; });
}

}  // namespace

static void add_to(Total& total, const Cost& cost)
{
    const unsigned lanes = unsigned(__builtin_popcount(cost.lanes));
    total.requests++, total.lanes += lanes, total.bytes += lanes * cost.bytes;
    total.unique_bytes += cost.unique_bytes, total.sectors += cost.sectors, total.lines += cost.lines;
    total.ideal_sectors += cost.ideal_sectors, total.wavefronts += cost.wavefronts,
        total.ideal_wavefronts += cost.ideal_wavefronts;
}

// Requests of one instruction mostly have the same pattern, which is then not counted anew.
const Cost& count_request(const Warp& w, const Op& op, uint32_t lanes, const uint64_t* at, unsigned bytes, bool shared)
{
    static const Cost UNCOUNTED = {};
    if (launch.uncounted) return UNCOUNTED;
    Memory& memory = *op.memory;
    if (trace_room) trace(w, op, lanes, at, bytes, shared, op.stores(shared), 0);
    const unsigned first = unsigned(__builtin_ctz(lanes));
    const uint32_t phase = uint32_t(at[first] % (shared ? 4 : LINE));  // conflicts stay if all lanes move by some banks
    if (memory.last.empty()) memory.last.resize(LINE / 4);
    Cost& last = memory.last[phase / 4];
    bool known = last.lanes == lanes && last.bytes == bytes && last.phase == phase && last.shared == shared;
    if (known) {
        uint64_t different = 0;
        for (unsigned l = 0; l < WARP; l++)
            different |= ((at[l] - at[first]) ^ uint64_t(last.apart[l])) & -uint64_t(lanes >> l & 1);
        known = !different;
    }
    if (!known) {
        last = {lanes, bytes, phase, 0, 0, 0, 0, 0, 0, shared, 0, {}};
        each(lanes, [&](unsigned l) { last.apart[l] = int64_t(at[l] - at[first]); });
        if (shared)
            cost_of_banks(at, last);
        else
            cost_of_sectors(at, last);
        if (!memory.worst.lanes || badness(last) > badness(memory.worst)) memory.worst = last;
    }
    if (w.recorded) record_request(w, op, lanes, at, last);
    add_to(memory.total[shared], last);
    return last;
}

void count_copy(const Warp& w, const Op& op, const std::vector<Piece>& pieces)
{
    bool counted[2] = {};
    for (const Piece& piece : pieces) {
        Total& total = op.memory->total[piece.shared];
        if (!counted[piece.shared]) counted[piece.shared] = true, total.requests++, total.lanes++;
        total.bytes += piece.bytes, total.unique_bytes += piece.bytes;
        if (trace_room) trace(w, op, 1, &piece.at, piece.bytes, piece.shared, piece.store, piece.swizzle);
        if (piece.shared) continue;
        total.sectors += (piece.at + piece.bytes - 1) / SECTOR - piece.at / SECTOR + 1;
        total.ideal_sectors += (piece.bytes + SECTOR - 1) / SECTOR;
    }
}

static void count_pattern(const Warp& w, const Op& op, uint64_t first, bool shared)
{
    if (launch.uncounted) return;
    const uint32_t phase = uint32_t(first % (shared ? 4 : LINE));
    Memory& memory = *op.memory;
    const Pattern& pattern = memory.pattern;
    if (!memory.last.empty()) {
        const Cost& last = memory.last[phase / 4];
        if (last.pattern == pattern.number && last.phase == phase && last.shared == shared)
            return add_to(memory.total[shared], last);
    }
    uint64_t at[WARP];
    for (unsigned l = 0; l < WARP; l++) at[l] = first + uint64_t(int32_t(pattern.apart[l]));
    count_request(w, op, pattern.lanes, at, op.bytes, shared);
    memory.last[phase / 4].pattern = pattern.number;
}

// In another block's shared memory: it takes that block's data path, and no counter of this one shows its passes.
static void count_remote(const Op& op, uint32_t lanes)
{
    Total& total = op.memory->total[1];
    const unsigned active = unsigned(__builtin_popcount(lanes));
    total.requests++, total.lanes += active, total.bytes += active * op.bytes;
}

void note(Event event, const Warp& w, uint32_t amount, uint32_t serial)
{
    if (!w.block->number && happened.size() < MOST_EVENTS)
        happened.push_back({uint32_t(event), w.rank, amount, serial});
}

namespace {

// ---- loads and stores
// ------------------------------------------------------------------------------------------------------

enum : uint32_t { GENERIC, SHARED, LOCAL, SPACE = 3, IS_SIGNED = 8 };

// 0 for a plain access; else the scope that it is strong for, and one more.
unsigned strength(const Op& op)
{
    if (!(op.flags & STRONG)) return op.flags & ALWAYS_STRONG ? OF_BLOCK + 1 : 0;
    return op.flags & WITHIN_BLOCK ? OF_BLOCK + 1 : OF_GPU + 1;
}

// For the check of races.
unsigned strength_among_atomics(const Op& op) { return op.flags & VERIFIED ? OF_GPU + 1 : strength(op); }

void publish_each(Warp& w, const Op& op, uint32_t lanes, const uint64_t* at, bool write)
{
    if (!launch.races) return;
    const bool reads = !write || op.flags & ALWAYS_STRONG, is_store = op.space == Space::SHARED && !reads;
    if (!is_store && !publishes(w)) return;
    if (is_store) fence(w, OF_BLOCK, lanes);  // it may write data beside the flag: ptxas merges stores behind a fence
    while (lanes) {
        const uint64_t first = at[__builtin_ctz(lanes)];
        uint32_t same = 0;
        each(lanes, [&](unsigned l) { same |= uint32_t(at[l] == first) << l; });
        const uint32_t all = w.lanes_for(op, same);
        for (unsigned word = 0; word < (is_store || op.bytes == 8 ? op.bytes : 1u); word += 4)
            publish(w, all, first + word, strength(op), reads, write);
        lanes &= ~same;
    }
}

// In its own block's shared memory, or another's of the cluster.
void look_at_shared(Warp& w, const Op& op, uint32_t lanes, const uint64_t* at, bool write, const uint32_t* data,
                    unsigned step)
{
    while (lanes) {
        const uint64_t rank = uint32_t(at[__builtin_ctz(lanes)]) >> 24;
        uint32_t same = 0;
        uint64_t from[WARP] = {}, place[WARP] = {};
        Block* const block = (*w.block->cluster)[rank];
        if (block != w.block) require_started(w, __builtin_ctz(lanes), at[__builtin_ctz(lanes)], write);
        each(lanes, [&](unsigned l) {
            if (uint32_t(at[l]) >> 24 == rank)
                same |= 1u << l, from[l] = at[l] & 0xffffff, place[l] = uint64_t(block->shared.data()) + from[l];
        });
        if (block != w.block) look_at_visit(w, op, same, *block, write);
        if (from[__builtin_ctz(same)] >=
            launch.reserved_shared)  // else it is the library's own, which counts on shuffles
            look(w, op, same, from, op.bytes, block, write, strength_among_atomics(op), data, step);
        if (strength(op)) publish_each(w, op, same, place, write);
        lanes &= ~same;
    }
}

// The memory that each lane's access is in, and its request or requests: a generic instruction may touch two memories.
void located(Warp& w, const Op& op, const Operand& o, uint32_t lanes, uint8_t** places, bool write,
             const uint32_t* data = nullptr, unsigned step = 0)
{
    uint64_t at[WARP];
    addresses(w, o, at);
    uint64_t every = 0;  // bits that any address has
    for (unsigned l = 0; l < WARP; l++) every |= at[l] & -uint64_t(lanes >> l & 1);
    if (every & (op.bytes - 1)) {
        Fault fault(RUNG_BOUNDS);
        const unsigned lane = unsigned(
            __builtin_ctz(lanes & rung_machine::where([&](unsigned l) { return (at[l] & (op.bytes - 1)) != 0; })));
        fault.misaligned = fault.bytes = op.bytes, fault.address = at[lane], fault.writes = write,
        fault.at = rung_machine::where(w, op, lane);
        snprintf(fault.text, sizeof fault.text, "an address is no multiple of %u bytes", op.bytes);
        throw fault;
    }
    const unsigned strong = strength(op);
    if ((op.flags & SPACE) == GENERIC && !(every >> 48)) {
        memcpy(places, at, sizeof at);
        require_inside(w, op, lanes, at, op.bytes, write);
        look(w, op, lanes, at, op.bytes, nullptr, write, strength_among_atomics(op), data, step);
        if (strong) publish_each(w, op, lanes, at, write);
        count_request(w, op, lanes, at, op.bytes, false);
        return;
    }
    uint32_t shared = 0, local = 0;
    if ((op.flags & SPACE) == SHARED) {
        shared = lanes;
        Block& block = *w.block;
        const uint64_t mine = uint64_t(block.in_cluster) << 24, size = launch.reserved_shared + launch.shared_bytes;
        uint8_t* const memory = block.shared.data();
        uint64_t outside = 0;
        for (unsigned l = 0; l < WARP; l++) {
            const uint64_t offset = at[l] - mine;
            outside |= ((offset + op.bytes > size) | (offset < launch.first_shared)) & (lanes >> l & 1);
            places[l] = memory + offset;
        }
        if (outside) each(lanes, [&](unsigned l) { places[l] = shared_place(w, uint32_t(at[l]), op.bytes); });
    } else if ((op.flags & SPACE) == LOCAL) {
        local = lanes;
        each(lanes, [&](unsigned l) { places[l] = local_place(w, uint32_t(at[l]), l, op.bytes); });
    } else
        each(lanes, [&](unsigned l) {
            bool is_shared = false;
            if (at[l] >> 48) {
                places[l] = place(w, at[l], l, op.bytes, is_shared);
                (is_shared ? shared : local) |= 1u << l;
            } else
                places[l] = reinterpret_cast<uint8_t*>(at[l]);
        });
    const uint32_t global = lanes & ~shared & ~local;
    if (global) {
        require_inside(w, op, global, at, op.bytes, write);
        look(w, op, global, at, op.bytes, nullptr, write, strength_among_atomics(op), data, step);
        if (strong) publish_each(w, op, global, at, write);
        count_request(w, op, global, at, op.bytes, false);
    }
    if (!shared) return;
    uint32_t own = 0;
    if (launch.races) look_at_shared(w, op, shared, at, write, data, step);
    for (unsigned l = 0; l < WARP; l++) {
        own |= uint32_t((uint32_t(at[l]) >> 24) == w.block->in_cluster) << l;
        at[l] = (at[l] & 0xffffff) - launch.reserved_shared;
    }
    if (shared & own) count_request(w, op, shared & own, at, op.bytes, true);
    if (shared & ~own) count_remote(op, shared & ~own);
}

bool prepare_memory(Op& op)
{
    static const struct
    {
        const char* name;
        uint8_t bytes;
    } sizes[] = {{"128", 16}, {"64", 8}, {"U16", 2}, {"S16", 2}, {"U8", 1}, {"S8", 1}};
    for (const auto& size : sizes)
        if (op.has(size.name)) op.bytes = size.bytes;
    op.flags = op.space == Space::SHARED ? SHARED : op.space == Space::LOCAL ? LOCAL : GENERIC;
    if (op.flags == GENERIC && op.has("E") && op.sources) {
        if (op.s[0].parts == "U32")  // of the register; the uniform one is a pair
            op.s[0].uniform_wide = true;
        else if (op.s[0].base != ZERO)
            op.s[0].wide = true;  // also without ".64"
    }
    if (op.has("STRONG")) op.flags |= STRONG;
    if (op.has("CTA") || op.has("SM")) op.flags |= WITHIN_BLOCK;
    if (op.has("CONSTANT")) op.flags |= READ_ONLY_CACHE;
    if ((op.has("S8") || op.has("S16")) && !op.store) op.flags |= IS_SIGNED;
    return op.sources && op.s[0].kind == Kind::Memory;
}

// Whether the lanes' addresses can be told by 32 bits.
bool learn(Pattern& p, const uint32_t* low, uint32_t lanes, unsigned bytes)
{
    static uint32_t number;
    const unsigned first = unsigned(__builtin_ctz(lanes));
    int32_t least = 0, most = 0;
    p.bits = 0, p.groups = 0;
    for (unsigned l = 0; l < WARP; l++) {
        p.apart[l] = (low[l] - low[first]) & -(lanes >> l & 1);
        p.bits |= p.apart[l];
        least = std::min(least, int32_t(p.apart[l])), most = std::max(most, int32_t(p.apart[l]));
    }
    const auto every = [&](unsigned from, unsigned count) {
        uint32_t together = 0, beside = 0;
        for (unsigned l = 0; l < count; l++) {
            const uint32_t apart = p.apart[from + l] - p.apart[from];
            together |= apart, beside |= apart ^ l * bytes;
        }
        return !together ? 0 : !beside ? bytes : Pattern::SCATTERED;
    };
    for (unsigned i = 0; i < WARP / 8; i++) p.of_eight[i] = every(8 * i, 8);
    constexpr int32_t FAR = 1 << 30;
    if (least < -FAR || most > FAR) return p.lanes = 0;
    p.lanes = lanes, p.number = ++number ? number : ++number, p.least = least, p.beyond = most + int32_t(bytes);
    p.every = lanes == ALL ? every(0, WARP) : Pattern::SCATTERED;
    return true;
}

bool has_pattern(const Pattern& p, const uint32_t* low, uint32_t lanes)
{
    if (p.lanes != lanes) return false;
    uint32_t differ = 0;
    if (lanes == ALL)
        for (unsigned l = 0; l < WARP; l++) differ |= low[l] - low[0] - p.apart[l];
    else {
        const uint32_t first = low[__builtin_ctz(lanes)];
        for (unsigned l = 0; l < WARP; l++) differ |= (low[l] - first - p.apart[l]) & -(lanes >> l & 1);
    }
    return !differ;
}

// The commonest accesses: plain ones, whose lanes' addresses lie near each other in memory that they may touch. They
// are counted and looked at as a whole. Where the first lane's is; null: each lane is to be looked at.
uint8_t* whole_warp(Warp& w, const Op& op, uint32_t lanes, bool write, const uint32_t* data = nullptr,
                    unsigned step = 0)
{
    const Operand& o = op.s[0];
    if (op.flags & (STRONG | ALWAYS_STRONG | VERIFIED) || (op.flags & SPACE) == LOCAL || o.scale != 1 || w.recorded ||
        trace_room || launch.followed)
        return nullptr;
    const uint32_t* const low = w.r[o.base];
    Pattern& p = op.memory->pattern;
    p.repeats = has_pattern(p, low, lanes);
    if (!p.repeats && !learn(p, low, lanes, op.bytes)) return nullptr;
    const unsigned one = unsigned(__builtin_ctz(lanes));
    uint32_t other = uint64_t(int64_t(low[one]) + p.least) >> 32 || uint64_t(int64_t(low[one]) + p.beyond) >> 32;
    if (o.wide && o.base != ZERO) {
        const uint32_t* const high = w.r[o.base + 1];
        for (unsigned l = 0; l < WARP; l++) other |= (high[l] ^ high[one]) & -(lanes >> l & 1);
    }
    const uint64_t first = address(w, o, one), from = first + uint64_t(int64_t(p.least)),
                   bytes = uint64_t(p.beyond - p.least);
    if (other || (first | p.bits) & (op.bytes - 1)) return nullptr;
    if ((op.flags & SPACE) == SHARED) {
        Block& block = *w.block;
        const uint64_t mine = uint64_t(block.in_cluster) << 24, offset = from - mine;
        if (offset < launch.reserved_shared || offset + bytes > launch.reserved_shared + launch.shared_bytes)
            return nullptr;
        if (launch.races) look_at_pattern(w, op, p, first - mine, &block, write, data, step);
        count_pattern(w, op, first - mine - launch.reserved_shared, true);
        return block.shared.data() + (first - mine);
    }
    if ((op.flags & SPACE) != GENERIC || (from + bytes) >> 48) return nullptr;
    const Region& region = region_of(from);
    if (from + bytes > region.to || (write && region.flags & INPUT_REGION)) return nullptr;
    if (launch.races && (launch.dependent || !(region.flags & INPUT_REGION)))
        look_at_pattern(w, op, p, first, nullptr, write, data, step);
    count_pattern(w, op, first, false);
    return reinterpret_cast<uint8_t*>(first);
}

// A warp that reads what another has written and finds the same again polls: others have their turn.
void look_for_polling(Warp& w, const Op& op, const uint8_t* where)
{
    uint32_t value = 0;
    memcpy(&value, where, op.bytes < 4 ? op.bytes : 4);
    if (w.polled == &op && w.polled_value == value) w.pauses = true;
    w.polled = &op, w.polled_value = value;
}

struct Unwritten
{
    rung_space space;
    uint64_t address, counted;
    uint32_t upper;
};  // the last two: of the words that it would hold

Unwritten unwritten_at(const Warp& w, const uint8_t* at)  // the patterns of shared and local memory begin at 0
{
    const uint8_t *const shared = w.block->shared.data(), *const local = w.local.data();
    if (at >= shared && at < shared + w.block->shared.size())
        return {RUNG_SHARED_SPACE, uint64_t(at - shared), uint64_t(at - shared) - launch.reserved_shared,
                launch.poisoned_with};
    if (at >= local && at < local + w.local.size())
        return {RUNG_LOCAL_SPACE, uint64_t(at - local), uint64_t(at - local), launch.poisoned_with};
    return {RUNG_GLOBAL_SPACE, uint64_t(at), uint64_t(at), NOT_A_NUMBER};
}

bool may_be_unwritten(uint32_t word)
{
    const uint32_t upper = word & 0xffff0000u;
    return upper == NOT_A_NUMBER || upper == launch.poisoned_with;
}

}  // namespace

void look_for_unwritten(Warp& w, const Op& op, uint32_t lanes, const uint8_t* const* where, unsigned bytes)
{
    each(lanes, [&](unsigned l) {
        uint32_t word;
        memcpy(&word, reinterpret_cast<const uint8_t*>(uint64_t(where[l]) / 4 * 4), sizeof word);
        if (!may_be_unwritten(word)) return;
        const Unwritten of = unwritten_at(w, where[l]);
        if (!of.upper || launch.unwritten[of.space].kind != RUNG_NO_FAULT ||
            unwritten_bytes(where[l], of.counted, bytes, of.upper) < bytes)
            return;
        Fault fault(RUNG_UNWRITTEN);
        fault.space = of.space, fault.address = of.address, fault.bytes = bytes,
        fault.at = rung_machine::where(w, op, l);
        snprintf(fault.text, sizeof fault.text, "reads what nothing has written");
        note_unwritten(w, op, l, fault);
    });
}

namespace {

template <unsigned WORDS>
void load_words(uint32_t* d, const uint8_t* from, const Pattern& p)
{
    uint32_t v[WARP * WORDS];
    if (!p.every) {
        memcpy(v, from, 4 * WORDS);
        for (unsigned i = 0; i < WORDS; i++) std::fill(d + i * WARP, d + (i + 1) * WARP, v[i]);
        return;
    }
    if (WORDS == 1 && p.every == 4) return void(memcpy(d, from, sizeof(Row)));
    if (p.lanes != ALL)
        return each(p.lanes, [&](unsigned l) {
            memcpy(v, from + int32_t(p.apart[l]), 4 * WORDS);
            for (unsigned i = 0; i < WORDS; i++) d[i * WARP + l] = v[i];
        });
    for (unsigned first = 0; first < WARP; first += 8) {
        const uint8_t* const at = from + int32_t(p.apart[first]);
        uint32_t* const to = (WORDS == 1 ? d : v) + first * WORDS;
        if (p.of_eight[first / 8] == 4 * WORDS)
            memcpy(to, at, 8 * 4 * WORDS);
        else
            for (unsigned l = 0; l < 8; l++) {
                int64_t apart = int32_t(p.apart[first + l]);
                asm("" : "+r"(apart));  // a vector of addresses would be taken apart again
                memcpy(to + l * WORDS, from + apart, 4 * WORDS);
            }
    }
    if (WORDS == 1) return;
    for (unsigned i = 0; i < WORDS; i++)
        for (unsigned l = 0; l < WARP; l++) d[i * WARP + l] = v[l * WORDS + i];
}

void load_pattern(Warp& w, const Op& op, uint8_t* from, uint32_t* d)
{
    const Pattern& p = op.memory->pattern;
    if (op.bytes == 4)
        load_words<1>(d, from, p);
    else if (op.bytes == 8)
        load_words<2>(d, from, p);
    else
        load_words<4>(d, from, p);
    const uint32_t poison = launch.poisoned_with;
    uint32_t any = 0;
    for (unsigned l = 0; l < WARP; l++)
        any |= uint32_t((d[l] & 0xffff0000u) == NOT_A_NUMBER) | uint32_t((d[l] & 0xffff0000u) == poison);
    if (!any) return;
    uint8_t* where[WARP];
    for (unsigned l = 0; l < WARP; l++) where[l] = from + int32_t(p.apart[l]);
    look_for_unwritten(w, op, p.lanes & rung_machine::where([&](unsigned l) { return may_be_unwritten(d[l]); }), where,
                       op.bytes);
}

void load(Warp& w, const Op& op, uint32_t lanes)
{
    uint8_t* where[WARP];
    uint32_t* const d = w.target(op.out);
    const unsigned words = d == w.r[SINK] ? 0 : op.bytes / 4;
    if (uint8_t* const from = words || op.bytes < 4 ? whole_warp(w, op, lanes, false) : nullptr) {
        if (words) return load_pattern(w, op, from, d);
        for (unsigned l = 0; l < WARP; l++) where[l] = from + int32_t(op.memory->pattern.apart[l]);
    } else {
        located(w, op, op.s[0], lanes, where, false);
        if (op.flags & STRONG) look_for_polling(w, op, where[__builtin_ctz(lanes)]);
    }
    if (op.bytes >= 4)
        each(lanes, [&](unsigned l) {
            uint32_t v[4];
            memcpy(v, where[l], op.bytes);
            for (unsigned i = 0; i < words; i++) d[i * WARP + l] = v[i];
        });
    else {
        const bool is_signed = op.flags & IS_SIGNED;
        each(lanes, [&](unsigned l) {
            const uint32_t v = op.bytes == 1 ? *where[l] : uint32_t(where[l][0] | where[l][1] << 8);
            d[l] = is_signed ? op.bytes == 1 ? uint32_t(int8_t(v)) : uint32_t(int16_t(v)) : v;
        });
    }
    look_for_unwritten(w, op, lanes, where, op.bytes);
}

void store(Warp& w, const Op& op, uint32_t lanes)
{
    uint8_t* where[WARP];
    const Operand& from = op.s[1];
    Row scratch;
    const uint32_t* const a = w.row(from, scratch);
    launch.changes++;
    const unsigned step = from.kind == Kind::Register && from.index != ZERO ? WARP : 0;
    if (op.bytes >= 4)
        if (uint8_t* const to = whole_warp(w, op, lanes, true, a, step)) {
            const Pattern& p = op.memory->pattern;
            const unsigned words = op.bytes / 4;
            if (words == 1 && p.every == 4) return void(memcpy(to, a, sizeof(Row)));
            uint32_t v[WARP * 4];
            for (unsigned i = 0; i < words; i++)
                for (unsigned l = 0; l < WARP; l++) v[l * words + i] = a[i * step + l];
            if (p.every == op.bytes) return void(memcpy(to, v, sizeof(Row) * words));
            return each(lanes, [&](unsigned l) { memcpy(to + int32_t(p.apart[l]), v + l * words, op.bytes); });
        }
    located(w, op, op.s[0], lanes, where, true, a, step);
    if (op.bytes >= 4) {
        const unsigned words = op.bytes / 4;
        each(lanes, [&](unsigned l) {
            uint32_t v[4];
            for (unsigned i = 0; i < words; i++) v[i] = a[i * step + l];
            memcpy(where[l], v, op.bytes);
        });
    } else
        each(lanes, [&](unsigned l) {
            memcpy(where[l], &a[l], op.bytes);
            if (const Unwritten of = unwritten_at(w, where[l]); of.upper)
                note_written(where[l], of.counted, op.bytes, of.upper);
        });
}

// ---- atomics
// -----------------------------------------------------------------------------------------------------------------

template <class T>
T as(uint64_t bits)
{
    T v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
template <class T>
uint64_t bits_of(T v)
{
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    return bits;
}

uint64_t pair_sum(uint64_t x, uint64_t y, bool bf16)
{
    uint64_t made = 0;
    for (unsigned i = 0; i < 2; i++) {
        const uint16_t a = uint16_t(x >> 16 * i), b = uint16_t(y >> 16 * i);
        made |= uint64_t(bf16 ? float_to_bf16(bf16_to_float(a) + bf16_to_float(b))
                              : float_to_half(half_to_float(a) + half_to_float(b)))
                << 16 * i;
    }
    return made;
}

// An atomic's flags: its memory, then what it does and to which numbers, and how many of them a lane has.
enum : uint32_t {
    ADD,
    MIN,
    MAX,
    INC,
    DEC,
    AND,
    OR,
    XOR,
    EXCH,
    CAS,
    CAST,
    POPC,
    ARRIVE,
    HOW = 4,
    TYPE = 8,
    COUNT = 12,
    FLUSHES = 1 << 16,
    GLOBAL_ONLY = 1 << 17
};
enum : uint32_t { U32, S32, U64, S64, F16x2, BF16x2, F32, F64 };

// A barrier of arrivals before sm_90: 30 bits of what it lacks to 0 at the start of a phase; in the upper word what it
// lacks now, and above it the phase's parity.
uint64_t arrived(uint64_t barrier)
{
    const uint32_t upper = uint32_t(barrier >> 32) + 1, lacks = uint32_t(int32_t(uint32_t(barrier) << 2) >> 2);
    const uint32_t made = upper << 1 ? upper : upper | (lacks & 0x7fffffff);
    return uint64_t(made) << 32 | uint32_t(barrier);
}

uint64_t combined(uint32_t how, uint32_t type, bool flushes, uint64_t old, uint64_t v)
{
    const auto flushed = [&](uint64_t bits) { return flushes && !(bits & 0x7f800000) ? bits & 0x80000000 : bits; };
    switch (type) {
    case F64: return bits_of(as<double>(old) + as<double>(v));
    case F32: return flushed(bits_of(as<float>(flushed(old)) + as<float>(flushed(v))));
    case F16x2:
    case BF16x2: return pair_sum(old, v, type == BF16x2);
    }
    const bool less = type == S32 ? int32_t(old) < int32_t(v) : type == S64 ? int64_t(old) < int64_t(v) : old < v;
    switch (how) {
    case MIN: return less ? old : v;
    case MAX: return less ? v : old;
    case INC: return old >= v ? 0 : old + 1;
    case DEC: return !old || old > v ? v : old - 1;
    case AND: return old & v;
    case OR: return old | v;
    case XOR: return old ^ v;
    case EXCH: return v;
    case POPC: return old + 1;
    case ARRIVE: return arrived(old);
    }
    return old + v;
}

// What an atomic of floating-point numbers did not do, in another memory than the global one, the code behind it does.
uint32_t in_global(const Warp& w, const Op& op, uint32_t lanes)
{
    uint64_t at[WARP];
    addresses(w, op.s[0], at);
    return lanes & where([&](unsigned l) { return !(at[l] >> 48); });
}

void atomic(Warp& w, const Op& op, uint32_t lanes)
{
    const uint32_t how = op.flags >> HOW & 15, type = op.flags >> TYPE & 15, count = op.flags >> COUNT & 15,
                   all = lanes;
    if (op.flags & GLOBAL_ONLY) lanes = in_global(w, op, lanes);
    uint32_t done = lanes;
    if (lanes) {
        uint8_t* at[WARP];
        located(w, op, op.s[0], lanes, at, true);
        uint32_t* const d = w.target(op.out);
        if (how != EXCH || d != w.r[SINK]) look_for_unwritten(w, op, lanes, at, op.bytes);  // else it is a write
        const bool swaps = how == CAS || how == CAST;
        const unsigned size = op.bytes / count, words = size / 4;
        Row first, second;
        const uint32_t *const a = op.sources > 1 ? w.row(op.s[1], first) : nullptr, *const b =
                                                                                        swaps ? w.row(op.s[2], second)
                                                                                              : nullptr;
        const auto value = [&](const uint32_t* from, const Operand& o, unsigned l, unsigned i) {
            const bool registers = o.kind == Kind::Register && o.index != ZERO;
            const uint32_t* const low = registers ? from + i * words * WARP : from;
            return low[l] | (words == 2 && registers ? uint64_t(low[WARP + l]) << 32 : 0);
        };
        if ((how == ADD || how == POPC) && type <= S32)  // the commonest
            each(lanes, [&](unsigned l) {
                uint32_t old;
                memcpy(&old, at[l], sizeof old);
                const uint32_t made = old + (how == ADD && a ? a[l] : 1);
                launch.changes += made != old;
                memcpy(at[l], &made, sizeof made);
                d[l] = old;
            });
        else
            each(lanes, [&](unsigned l) {
                for (unsigned i = 0; i < count; i++) {
                    uint64_t old = 0;
                    memcpy(&old, at[l] + i * size, size);
                    uint64_t made = old, given = a ? value(a, op.s[1], l, i) : 1;
                    if (!swaps)
                        made = combined(how, type, op.flags & FLUSHES, old, given);
                    else if (old == given)
                        made = value(b, op.s[2], l, i);
                    else
                        done &= ~(1u << l);
                    launch.changes += made != old;
                    memcpy(at[l] + i * size, &made, size);
                    if (how == CAST) old = done >> l & 1;  // whether it is done; the upper word is read, too
                    if (d == w.r[SINK]) continue;
                    d[i * words * WARP + l] = uint32_t(old);
                    if (words == 2) d[(i * words + 1) * WARP + l] = uint32_t(old >> 32);
                }
            });
        if (swaps) look_for_polling(w, op, at[__builtin_ctz(lanes)]);
    }
    if (op.outs) w.set(op.p[0], done, all);
}

bool prepare_atomic(Op& op)
{
    static const char* const hows[] = {"ADD", "MIN",  "MAX", "INC",  "DEC",  "AND",   "OR",
                                       "XOR", "EXCH", "CAS", "CAST", "POPC", "ARRIVE"};
    static const struct
    {
        const char* name;
        uint32_t type, count;
        uint8_t size;
    } types[] = {{"S32", S32, 1, 4},        {"U64", U64, 1, 8},       {"S64", S64, 1, 8},      {"64", U64, 1, 8},
                 {"F64", F64, 1, 8},        {"F32", F32, 1, 4},       {"F32x2", F32, 2, 4},    {"F32x4", F32, 4, 4},
                 {"F16x2", F16x2, 1, 4},    {"F16x4", F16x2, 2, 4},   {"F16x8", F16x2, 4, 4},  {"BF16x2", BF16x2, 1, 4},
                 {"BF16_V2", BF16x2, 1, 4}, {"BF16x4", BF16x2, 2, 4}, {"BF16x8", BF16x2, 4, 4}};
    if (!prepare_memory(op)) return false;
    uint32_t how = ADD, type = U32, count = 1;
    unsigned size = 4;
    for (uint32_t i = 0; i < 13; i++)
        if (op.has(hows[i])) how = i;
    for (const auto& t : types)
        if (op.has(t.name)) type = t.type, count = t.count, size = t.size;
    op.bytes = uint8_t(size * count);
    op.flags |= how << HOW | type << TYPE | count << COUNT | (op.has("FTZ") ? FLUSHES : 0) | ALWAYS_STRONG;
    if (op.space == Space::ANY && op.outs && type >= F16x2) op.flags |= GLOBAL_ONLY;
    return type < F16x2 || how == ADD || how == EXCH;
}

// Whether a generic address is in the block's shared memory (S), that of the cluster (D), local (L) or global (G)
// memory.
void query_space(Warp& w, const Op& op, uint32_t lanes)
{
    uint64_t at[WARP];
    addresses(w, op.s[0], at);
    const bool own = op.has("S");
    const uint64_t window = own || op.has("D") ? SHARED_WINDOW : op.has("L") ? LOCAL_WINDOW : 0;
    const auto in_it = [&](unsigned l) {
        return at[l] >> 48 == window >> 48 && (!own || uint32_t(at[l]) >> 24 == w.block->in_cluster);
    };
    w.set(op.p[0], where(in_it), lanes);
}

bool prepare_query(Op& op)
{
    Operand& pointer = op.s[0];
    (pointer.uniform == ZERO ? pointer.wide : pointer.uniform_wide) = true;
    return op.outs == 1 && op.out.index == ZERO && op.s[0].kind == Kind::Memory;
}

// ---- constants
// -----------------------------------------------------------------------------------------------------------------

void load_constant(Warp& w, const Op& op, uint32_t lanes)
{
    const Operand& o = op.s[0];
    uint32_t *const d = w.target(op.out), *const upper = op.bytes == 8 && op.out.index != ZERO ? d + WARP : w.r[SINK];
    const std::vector<uint8_t>& bank = launch.bank[o.index];
    const bool is_signed = op.flags & IS_SIGNED, indexed = o.base != ZERO || o.uniform != ZERO;
    const auto read = [&](uint64_t at) {
        uint64_t v = 0;
        if (at + sizeof v <= bank.size())
            memcpy(&v, bank.data() + at, sizeof v);
        else if (at < bank.size())
            memcpy(&v, bank.data() + at, bank.size() - at);
        v &= ~0ull >> (64 - 8 * op.bytes);
        return !is_signed ? v : op.bytes == 1 ? uint32_t(int8_t(v)) : uint32_t(int16_t(v));
    };
    uint64_t at[WARP], differ = 0;
    if (indexed) constant_addresses(w, o, at);
    const uint64_t first = indexed ? at[__builtin_ctz(lanes)] : uint64_t(int64_t(o.offset));
    for (unsigned l = 0; l < WARP && indexed; l++) differ |= (at[l] ^ first) & -uint64_t(lanes >> l & 1);
    if (indexed)
        each(differ ? lanes : lanes & -lanes, [&](unsigned l) {
            if (at[l] + op.bytes > bank.size())
                fail(w, RUNG_BOUNDS, "byte %lld is beyond the %zu bytes of constant memory", (long long)int64_t(at[l]),
                     bank.size());
        });
    if (differ)
        return each(lanes, [&](unsigned l) {
            const uint64_t v = read(at[l]);
            d[l] = uint32_t(v), upper[l] = uint32_t(v >> 32);
        });
    const uint64_t v = read(first);
    map(upper, lanes, [&](unsigned) { return uint32_t(v >> 32); });
    map(d, lanes, [&](unsigned) { return uint32_t(v); });
}

bool prepare_constant(Op& op)
{
    op.bytes = op.has("64") ? 8 : op.has("U16") || op.has("S16") ? 2 : op.has("U8") || op.has("S8") ? 1 : 4;
    if (op.has("S8") || op.has("S16")) op.flags |= IS_SIGNED;
    if (op.name == "LDCU") op.uniform = true;
    return op.s[0].kind == Kind::Constant;
}

#define OF_MEMORY
#include "rows.h"

}  // namespace

void add_memory(Table& table) { add_rows(table); }

}  // namespace rung_machine
