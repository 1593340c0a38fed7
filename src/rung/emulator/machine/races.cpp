// Races, by what orders accesses. A warp counts its barriers, fences and meetings; a clock says up to which count of each
// warp, and of some of its lanes up to which later one, all is ordered before its owner. Lanes of a warp that know different
// things have different clocks. Barriers order their threads, __syncwarp its lanes (a NOP of the machine code, or
// WARPSYNC); shuffles and votes order nothing. An atomic releases what a fence before it covers, and a fence after it
// acquires that, within the scopes of both fences and of the atomics. Blocks that have ended are not mistaken for those
// that run in their place: counts go on, and what was known of them is kept apart.
//
// History is kept by lines of 128 bytes: for each warp and count the bytes that it has read or written, and by which lanes.
#include "judging.h"

#include <algorithm>

namespace rung_machine {
namespace {

constexpr unsigned SCOPES = 3, LINE = 128;

// ---- clocks ---------------------------------------------------------------------------------------------------------

std::vector<uint32_t> twins;       // [slot]: the slot for what a fence.proxy.async covers of it
std::vector<uint32_t> now, born;  // [slot]: a warp's count; the count at which the warp of the present block began
struct Began { uint32_t count; uint64_t block; uint32_t rank; };
std::vector<std::vector<Began>> history;  // [slot]
std::vector<uint32_t> free_slots;

}  // namespace

struct Clock
{
    struct Some { uint32_t slot, lanes, count; };
    std::vector<uint32_t> all, past;  // [slot]: of the present block's warp, or of those before it
    std::vector<Some> some;           // further, of these lanes

    static uint32_t at(const std::vector<uint32_t>& v, uint32_t slot) { return slot < v.size() ? v[slot] : 0; }
    static void raise(std::vector<uint32_t>& v, uint32_t slot, uint32_t count)
    {
        if (v.size() <= slot) v.resize(now.size());
        v[slot] = std::max(v[slot], count);
    }
    void know(uint32_t slot, uint32_t count)
    {
        if (count < born[slot]) return raise(past, slot, count);
        if (const uint32_t before = at(all, slot); before && before < born[slot]) raise(past, slot, before);
        raise(all, slot, count);
    }
    bool knows(uint32_t slot, uint32_t count) const
    {
        const uint32_t known = at(all, slot);
        if (count >= born[slot]) return known >= count;
        return at(past, slot) >= count || (known < born[slot] && known >= count);
    }
    void know_some(uint32_t slot, uint32_t lanes, uint32_t count)
    {
        if (knows(slot, count)) return;
        const bool ended = count < born[slot];
        for (Some& s : some)
            if (s.slot == slot && s.lanes == lanes && (s.count < born[slot]) == ended) {
                s.count = std::max(s.count, count);
                return;
            }
        some.push_back({slot, lanes, count});
    }
    // Those of the lanes whose accesses at this count are ordered before.
    uint32_t lanes_known(uint32_t slot, uint32_t count) const
    {
        if (knows(slot, count)) return ALL;
        uint32_t lanes = 0;
        for (const Some& s : some)
            if (s.slot == slot && s.count >= count && (s.count < born[slot]) == (count < born[slot])) lanes |= s.lanes;
        return lanes;
    }
    void join(const Clock& other)
    {
        if (&other == this) return;
        for (uint32_t i = 0; i < other.all.size(); i++)
            if (other.all[i]) know(i, other.all[i]);
        for (uint32_t i = 0; i < other.past.size(); i++)
            if (other.past[i]) raise(past, i, other.past[i]);
        for (const Some& s : other.some) know_some(s.slot, s.lanes, s.count);
    }
    void prune()
    {
        some.erase(std::remove_if(some.begin(), some.end(), [&](const Some& s) { return knows(s.slot, s.count); }), some.end());
    }
};
namespace {

using Shared = ClockOf;

Clock& own(Shared& clock)  // to be changed
{
    if (!clock) clock = std::make_shared<Clock>();
    else if (clock.use_count() > 1) clock = std::make_shared<Clock>(*clock);
    return *clock;
}

struct Lanes  // that know the same
{
    uint32_t lanes;
    Shared known;
    Shared released[SCOPES], pending[SCOPES];  // what the last fence covers; what atomics have read since
    uint32_t fenced[SCOPES] = {};              // the own count at that fence
};

}  // namespace

struct WarpHistory
{
    uint32_t slot, full;
    uint32_t agents[3] = {};          // slots; 0: none yet
    uint32_t waited[3][WARP] = {};    // by a lane, for its own
    uint32_t reading = 0, reader = 0; // the last group of copies out of the block's shared memory, and who began it
    std::vector<Lanes> of;
};

struct LineEntry
{
    uint64_t bytes[2];
    uint32_t slot, count, op, lanes, rows;  // lanes: of all bytes; rows: by words, an index
    int8_t first;                           // BY_PLACE: the lane of the line's first byte
    uint8_t shift, strong;
    enum Kind : uint8_t { SAME, BY_PLACE, BY_ROW } kind;  // each lane all bytes; one each in their order; as `rows` says
};
struct LineHistory { std::vector<LineEntry> writes, reads; };
struct BlockHistory
{
    std::vector<LineHistory> lines;
    std::vector<uint32_t> agents;  // of its barriers
    std::vector<ClockOf> named = std::vector<ClockOf>(16);
};

namespace {

// All groups of the lanes, each wholly within them.
template <class F>
void each_group(WarpHistory& h, uint32_t lanes, F f)
{
    for (size_t i = 0; i < h.of.size(); i++) {
        const uint32_t inside = h.of[i].lanes & lanes;
        if (!inside) continue;
        if (inside != h.of[i].lanes) {
            Lanes rest = h.of[i];
            rest.lanes &= ~lanes, h.of[i].lanes = inside;
            h.of.push_back(rest);
        }
        f(h.of[i]);
    }
}

void take_up(Lanes& g, unsigned scope)
{
    for (unsigned s = 0; s <= scope; s++)
        if (g.pending[s]) own(g.known).join(*g.pending[s]), g.pending[s].reset();
}

void know_own(Clock& clock, const WarpHistory& h, uint32_t lanes)
{
    if ((lanes & h.full) == h.full) clock.know(h.slot, now[h.slot]);
    else clock.know_some(h.slot, lanes, now[h.slot]);
}

// Their copies and products that they have waited for.
void know_agents(Clock& clock, const WarpHistory& h, uint32_t lanes)
{
    for (unsigned agent = 0; agent < 3; agent++) {
        if (!h.agents[agent]) continue;
        for (uint32_t left = lanes; left;) {
            const uint32_t count = h.waited[agent][__builtin_ctz(left)];
            uint32_t same = 0;
            each(left, [&](unsigned l) { same |= uint32_t(h.waited[agent][l] == count) << l; });
            left &= ~same;
            if (!count) continue;
            if ((same & h.full) == h.full || agent == unsigned(Agent::Products)) clock.know(h.agents[agent], count);
            else clock.know_some(h.agents[agent], same, count);
        }
    }
}

// What these lanes know, and their own accesses.
void publish(Shared& to, Warp& w, uint32_t lanes, Shared* first = nullptr)
{
    WarpHistory& h = *w.history;
    each_group(h, lanes, [&](Lanes& g) {
        if (!to) to = g.known;
        else if (g.known && g.known != to && !(first && g.known == *first)) own(to).join(*g.known);
        if (first && !*first) *first = g.known;
    });
    know_own(own(to), h, lanes);
    know_agents(own(to), h, lanes);
}

void learn(Warp& w, uint32_t lanes, const Shared& from)
{
    if (!from) return;
    each_group(*w.history, lanes, [&](Lanes& g) {
        if (!g.known) g.known = from;
        else if (g.known != from) own(g.known).join(*from);
    });
}

void become(Warp& w, uint32_t lanes, const Shared& clock)
{
    WarpHistory& h = *w.history;
    if ((lanes & h.full) == h.full && h.of.size() == 1) {
        h.of[0].known = clock;
        return;
    }
    each_group(h, lanes, [&](Lanes& g) { g.known = clock; });
    // Groups that differ in nothing any more become one.
    for (size_t i = 0; i < h.of.size(); i++)
        for (size_t k = i + 1; k < h.of.size();) {
            Lanes &a = h.of[i], &b = h.of[k];
            bool same = a.known == b.known;
            for (unsigned s = 0; s < SCOPES; s++) same &= a.released[s] == b.released[s] && a.pending[s] == b.pending[s] && a.fenced[s] == b.fenced[s];
            if (!same) {
                k++;
                continue;
            }
            a.lanes |= b.lanes;
            h.of.erase(h.of.begin() + long(k));
        }
}

// ---- what atomics release --------------------------------------------------------------------------------------------

struct Location { uint64_t domain; Shared clock; };
std::unordered_map<uint64_t, std::vector<Location>> locations;  // by address; of shared memory by the host's

uint64_t domain_of(const Block& block, unsigned scope)  // by numbers: memory of blocks that have ended is used again
{
    return scope == 2 ? 0 : scope == 1 ? ~block.cluster->front()->number : block.number + 1;
}

void synchronize(Warp& w, uint64_t key, uint32_t lanes, bool load, bool store, unsigned widest)
{
    WarpHistory& h = *w.history;
    const auto found = locations.find(key);
    std::vector<Location>* location = found == locations.end() ? nullptr : &found->second;
    const auto at = [&](unsigned scope) -> Shared* {
        if (location)
            for (Location& l : *location)
                if (l.domain == domain_of(*w.block, scope)) return &l.clock;
        return nullptr;
    };
    each_group(h, lanes, [&](Lanes& g) {
        for (unsigned s = 0; load && location && s <= widest; s++)
            if (Shared* clock = at(s); clock && *clock) own(g.pending[s]).join(**clock);
    });
    if (!store) return;
    if (!load && location)  // a plain store hides earlier releases
        for (Location& l : *location) l.clock.reset();
    each_group(h, lanes, [&](Lanes& g) {
        for (unsigned s = 0; s <= widest; s++) {
            if (!g.fenced[s]) continue;
            if (!location) location = &locations[key];
            Shared* clock = at(s);
            if (!clock) location->push_back({domain_of(*w.block, s), nullptr}), clock = &location->back().clock;
            Clock& to = own(*clock);
            if (g.released[s]) to.join(*g.released[s]);
            if ((g.lanes & lanes & h.full) == h.full) to.know(h.slot, g.fenced[s]);
            else to.know_some(h.slot, g.lanes & lanes, g.fenced[s]);
        }
    });
}

// ---- lines ------------------------------------------------------------------------------------------------------------

std::vector<std::array<uint32_t, 32>> rows;
std::vector<uint32_t> free_rows;

uint32_t new_rows()
{
    if (free_rows.empty()) free_rows.push_back(uint32_t(rows.size())), rows.emplace_back();
    const uint32_t made = free_rows.back();
    free_rows.pop_back();
    rows[made].fill(0);
    return made;
}

constexpr unsigned PAGE = 32;
std::unordered_map<uint64_t, std::unique_ptr<std::array<LineHistory, PAGE>>> pages;
uint64_t last_page = ~0ull;
std::array<LineHistory, PAGE>* last_lines;
std::vector<std::unique_ptr<BlockHistory>> spare_histories;

LineHistory& line_of(uint64_t number)
{
    if (number / PAGE != last_page) {
        auto& page = pages[number / PAGE];
        if (!page) page.reset(new std::array<LineHistory, PAGE>());
        last_page = number / PAGE, last_lines = page.get();
    }
    return (*last_lines)[number % PAGE];
}

uint32_t lanes_at(const LineEntry& e, unsigned byte)
{
    if (e.kind == LineEntry::SAME) return e.lanes;
    if (e.kind == LineEntry::BY_ROW) return rows[e.rows][byte / 4];
    const int lane = e.first + int(byte >> e.shift);
    return lane < 0 || lane > 31 ? 0 : 1u << lane;
}

void drop(std::vector<LineEntry>& entries, size_t i)
{
    if (entries[i].kind == LineEntry::BY_ROW) free_rows.push_back(entries[i].rows);
    entries[i] = entries.back();
    entries.pop_back();
}

bool overlap(const LineEntry& a, const LineEntry& b) { return (a.bytes[0] & b.bytes[0]) | (a.bytes[1] & b.bytes[1]); }
bool within(const LineEntry& a, const LineEntry& b) { return !((a.bytes[0] & ~b.bytes[0]) | (a.bytes[1] & ~b.bytes[1])); }

void mark(LineEntry& e, unsigned first, unsigned bytes)
{
    const unsigned __int128 mask = (bytes == 128 ? ~(unsigned __int128)0 : (((unsigned __int128)1 << bytes) - 1)) << first;
    e.bytes[0] |= uint64_t(mask), e.bytes[1] |= uint64_t(mask >> 64);
}

// The bytes of an access, by lines.
struct LinePiece { uint64_t line; LineEntry e; };
struct Pieces { LinePiece of[WARP * 4]; unsigned count = 0; };

void collect(const WarpHistory& h, const Access& a, uint32_t lanes, Pieces& out)
{
    const LineEntry blank = {{0, 0}, h.slot, now[h.slot], a.op->number, 0, 0, 0, uint8_t(__builtin_ctz(a.bytes)), a.strong, LineEntry::SAME};
    const unsigned first = unsigned(__builtin_ctz(lanes)), last = 31 - unsigned(__builtin_clz(lanes));
    const bool run = lanes == (last - first == 31 ? ALL : ((1u << (last - first + 1)) - 1) << first) && (a.bytes & (a.bytes - 1)) == 0;
    if (run && last > first) {
        uint64_t different = 0;
        for (unsigned l = 0; l < WARP; l++) different |= ((a.at[l] - a.at[first]) ^ uint64_t((int64_t(l) - first) * a.bytes)) & -uint64_t(lanes >> l & 1);
        if (!different) {
            const uint64_t from = a.at[first], to = from + uint64_t(last - first + 1) * a.bytes;
            for (uint64_t at = from; at < to;) {
                const uint64_t line = at / LINE, next = std::min(to, (line + 1) * LINE);
                LinePiece& p = out.of[out.count++];
                p = {line, blank};
                p.e.kind = LineEntry::BY_PLACE, p.e.first = int8_t(int64_t(first) - (int64_t(from) - int64_t(line * LINE)) / int64_t(a.bytes));
                p.e.lanes = lanes;
                mark(p.e, unsigned(at % LINE), unsigned(next - at));
                at = next;
            }
            return;
        }
    }
    uint64_t where[WARP * 4];  // the address of a piece's lanes, if all have the same
    bool mixed[WARP * 4];
    each(lanes, [&](unsigned l) {
        const uint64_t line = a.at[l] / LINE;
        unsigned i = out.count;
        while (i-- && (out.of[i].line != line || (a.bytes < 4 && where[i] != a.at[l]))) {}
        if (i == ~0u) {
            i = out.count++;
            out.of[i] = {line, blank};
            where[i] = a.at[l], mixed[i] = false;
        } else if (where[i] != a.at[l]) mixed[i] = true;
        out.of[i].e.lanes |= 1u << l;
        mark(out.of[i].e, unsigned(a.at[l] % LINE), a.bytes);
    });
    bool any = false;
    for (unsigned i = 0; i < out.count; i++) any |= mixed[i];
    if (!any) return;
    for (unsigned i = 0; i < out.count; i++)
        if (mixed[i]) out.of[i].e.kind = LineEntry::BY_ROW, out.of[i].e.rows = new_rows();
    each(lanes, [&](unsigned l) {
        for (unsigned i = 0; i < out.count; i++)
            if (out.of[i].line == a.at[l] / LINE && mixed[i])
                for (unsigned b = 0; b < a.bytes; b += 4) rows[out.of[i].e.rows][(a.at[l] % LINE + b) / 4] |= 1u << l;
    });
}

std::vector<bool> is_agent;  // [slot]
bool agents_slot(uint32_t slot) { return slot < is_agent.size() && is_agent[slot]; }

bool both_strong(const Warp& w, const LineEntry& mine, const LineEntry& was)
{
    const unsigned narrower = std::min(mine.strong, was.strong);
    if (!narrower || narrower == SCOPES) return narrower;
    if (was.count < born[was.slot]) return false;
    for (const auto& other : w.block->warps)
        if (other->history && other->history->slot == was.slot) return true;
    if (narrower == 2)
        for (const Block* block : *w.block->cluster)
            for (const auto& other : block->warps)
                if (other->history && other->history->slot == was.slot) return true;
    return false;
}

[[noreturn]] void race(Warp& w, const Access& a, bool shared, uint64_t line, unsigned byte, unsigned lane, const LineEntry& was, bool was_write, unsigned other_lane, Why why)
{
    if (agents_slot(was.slot)) why = Why::UnderWay;
    const std::vector<Began>& log = history[was.slot];
    const auto began = std::upper_bound(log.begin(), log.end(), was.count, [](uint32_t c, const Began& b) { return c < b.count; });
    const Began& other = began == log.begin() ? *began : began[-1];
    judged.other_op = int32_t(was.op), judged.other_write = was_write;
    judged.other_block[0] = uint32_t(other.block % launch.grid[0]);
    judged.other_block[1] = uint32_t(other.block / launch.grid[0] % launch.grid[1]);
    judged.other_block[2] = uint32_t(other.block / (uint64_t(launch.grid[0]) * launch.grid[1]));
    judged.other_thread = other.rank * WARP + other_lane;
    fault(w, a.op, lane, Fault::Race, why, shared ? Where::Shared : Where::Global, line * LINE + byte, a.bytes, a.write);
}

// Whether every byte that a lane stores is there already.
bool stores_the_same(const Access& a, unsigned lane, const uint8_t* memory)
{
    uint32_t words[4] = {};
    for (unsigned i = 0; i < (a.bytes + 3) / 4; i++) words[i] = a.values[i * a.step + lane];
    return !memcmp(words, memory, a.bytes);
}

struct Check
{
    Warp& w;
    Block* of;
    const Access& a;
    Lanes& g;

    const uint8_t* memory(uint64_t at) const { return of ? of->shared.data() + RESERVED_SHARED + at : reinterpret_cast<const uint8_t*>(at); }

    void against(const LinePiece& p, const LineEntry& was, bool was_write) const
    {
        if (!overlap(p.e, was)) return;
        const Clock* const known = g.known.get();
        if (known && known->knows(was.slot, was.count)) return;
        if (both_strong(w, p.e, was)) return;
        const bool ended = was.count < born[was.slot], own_warp = !ended && was.slot == w.history->slot;
        int agent = -1;
        for (int i = 0; i < 3 && !ended; i++)
            if (w.history->agents[i] && was.slot == w.history->agents[i]) agent = i;
        if (own_warp && p.e.slot == was.slot && was.kind == LineEntry::BY_PLACE && p.e.kind == was.kind && was.first == p.e.first && was.shift == p.e.shift) return;
        const uint32_t some = known ? known->lanes_known(was.slot, was.count) : 0;
        for (unsigned half = 0; half < 2; half++)
            for (uint64_t bytes = p.e.bytes[half] & was.bytes[half]; bytes; bytes &= bytes - 1) {
                const unsigned byte = half * 64 + unsigned(__builtin_ctzll(bytes));
                const uint32_t theirs = lanes_at(was, byte) & ~some, mine = lanes_at(p.e, byte);
                if (!theirs) continue;
                uint32_t racing = mine;
                if (own_warp && !(theirs & (theirs - 1))) racing &= ~theirs;  // a lane does not race with itself
                if (agent == int(Agent::Products))
                    each(mine, [&](unsigned l) { racing &= ~(uint32_t(w.history->waited[agent][l] >= was.count) << l); });
                else if (agent >= 0 && !(theirs & (theirs - 1)) && w.history->waited[agent][__builtin_ctz(theirs)] >= was.count) racing &= ~theirs;
                if (!racing) continue;
                uint32_t other = theirs;
                const unsigned lane = unsigned(__builtin_ctz(racing));
                if (own_warp && other & ~(1u << lane)) other &= ~(1u << lane);
                Why why = Why::None;
                // Lanes of a warp may store the same value to one address by one instruction.
                if (own_warp && a.write && was_write && !a.strong && !was.strong && was.op == a.op->number && a.values) {
                    bool same = true;
                    each(racing, [&](unsigned l) { same &= stores_the_same(a, l, memory(a.at[l])); });
                    if (same) continue;
                    why = Why::SameInstruction;
                }
                race(w, a, of, p.line, byte, lane, was, was_write, unsigned(__builtin_ctz(other)), why);
            }
    }

    // The read-only cache may hold what was there before the launch.
    void cached(const LinePiece& p, const LineEntry& was) const
    {
        for (unsigned half = 0; half < 2; half++)
            if (const uint64_t bytes = p.e.bytes[half] & was.bytes[half]) {
                const unsigned byte = half * 64 + unsigned(__builtin_ctzll(bytes));
                race(w, a, of, p.line, byte, unsigned(__builtin_ctz(lanes_at(p.e, byte))), was, true, unsigned(__builtin_ctz(lanes_at(was, byte))), Why::ReadOnlyCache);
            }
    }

    // A write by a thread that the copy engine or the tensor cores read: a fence.proxy.async comes between.
    void covered(const LinePiece& p, const LineEntry& was) const
    {
        if (!of || !overlap(p.e, was) || was.count < born[was.slot] || agents_slot(was.slot)) return;
        const Clock* const known = g.known.get();
        const uint32_t twin = twins[was.slot];
        const uint32_t fenced = twin && known ? known->lanes_known(twin, was.count) : 0;
        if (fenced == ALL) return;
        for (unsigned half = 0; half < 2; half++)
            for (uint64_t bytes = p.e.bytes[half] & was.bytes[half]; bytes; bytes &= bytes - 1) {
                const unsigned byte = half * 64 + unsigned(__builtin_ctzll(bytes));
                if (const uint32_t theirs = lanes_at(was, byte) & ~fenced)
                    race(w, a, of, p.line, byte, unsigned(__builtin_ctz(p.e.lanes)), was, true, unsigned(__builtin_ctz(theirs)), Why::Proxy);
            }
    }
};

void remember(std::vector<LineEntry>& entries, const Clock* known, const LineEntry& mine, const BlockHistory* in_block)
{
    for (size_t i = entries.size(); i-- > 0;) {
        LineEntry& e = entries[i];
        if (e.slot != mine.slot || e.count != mine.count || e.strong != mine.strong) continue;
        const bool same = e.kind == mine.kind && e.kind != LineEntry::BY_ROW &&
                          (e.kind == LineEntry::SAME ? e.lanes == mine.lanes : e.first == mine.first && e.shift == mine.shift);
        if (!same) {
            if (e.shift < 2 || mine.shift < 2) continue;
            if (e.kind != LineEntry::BY_ROW) {
                const uint32_t made = new_rows();
                for (unsigned word = 0; word < 32; word++)
                    if (e.bytes[word / 16] >> word % 16 * 4 & 15) rows[made][word] = lanes_at(e, word * 4);
                e.kind = LineEntry::BY_ROW, e.rows = made;
            }
            if (mine.kind == LineEntry::BY_ROW)
                for (unsigned word = 0; word < 32; word++) rows[e.rows][word] |= rows[mine.rows][word];
            else
                for (unsigned word = 0; word < 32; word++)
                    if (mine.bytes[word / 16] >> word % 16 * 4 & 15) rows[e.rows][word] |= lanes_at(mine, word * 4);
            if (mine.kind == LineEntry::BY_ROW) free_rows.push_back(mine.rows);
        }
        e.bytes[0] |= mine.bytes[0], e.bytes[1] |= mine.bytes[1], e.lanes |= mine.lanes, e.op = mine.op;
        return;
    }
    // What every later write that is ordered behind this access is ordered behind, too, need not be kept.
    if (!mine.strong && known)
        for (size_t i = entries.size(); i-- > 0;)
            if (within(entries[i], mine) && known->knows(entries[i].slot, entries[i].count)) drop(entries, i);
    if (entries.size() > 4096) drop(entries, 0);
    entries.push_back(mine);
    (void)in_block;
}

void clear_bytes(std::vector<LineEntry>& entries, const LineEntry& mine)
{
    for (size_t i = entries.size(); i-- > 0;) {
        LineEntry& e = entries[i];
        e.bytes[0] &= ~mine.bytes[0], e.bytes[1] &= ~mine.bytes[1];
        if (!(e.bytes[0] | e.bytes[1])) drop(entries, i);
    }
}

}  // namespace

void check_races(Warp& w, Block* of, const Access& a)
{
    WarpHistory& h = *w.history;
    BlockHistory* const in_block = of ? of->history.get() : nullptr;
    if (a.write && a.values && !a.strong) {  // lanes that store to one address
        const unsigned first = unsigned(__builtin_ctz(a.lanes));
        bool equal = a.lanes & (a.lanes - 1);
        for (unsigned l = first + 1; equal && l < WARP; l++) equal = !(a.lanes >> l & 1) || a.at[l] == a.at[first];
        if (equal)
            each(a.lanes, [&](unsigned l) {
                for (unsigned i = 0; i < (a.bytes + 3) / 4; i++) {
                    const uint32_t mask = a.bytes >= 4 ? ALL : (1u << 8 * a.bytes) - 1;
                    if ((a.values[i * a.step + l] ^ a.values[i * a.step + first]) & mask) {
                        const LineEntry was = {{0, 0}, h.slot, now[h.slot], a.op->number, 0, 0, 0, 0, 0, LineEntry::SAME};
                        race(w, a, of, a.at[l] / LINE, unsigned(a.at[l] % LINE), l, was, true, first, Why::SameInstruction);
                    }
                }
            });
    }
    const bool cached = a.read && !of && a.op->cached;
    const auto one_group = [&](Lanes& g, uint32_t lanes) {
        Pieces pieces;
        collect(h, a, lanes, pieces);
        const Check check{w, of, a, g};
        for (unsigned i = 0; i < pieces.count; i++) {
            LinePiece& p = pieces.of[i];
            LineHistory& line = in_block ? in_block->lines[p.line] : line_of(p.line);
            for (const LineEntry& e : line.writes) {
                if (cached && overlap(p.e, e) && !of) check.cached(p, e);
                check.against(p, e, true);
            }
            if (a.write) {
                for (const LineEntry& e : line.reads) check.against(p, e, false);
                clear_bytes(line.reads, p.e);
                if (line.writes.size() != 1 || line.writes[0].slot != p.e.slot || line.writes[0].count != p.e.count) clear_bytes(line.writes, p.e);
                remember(line.writes, g.known.get(), p.e, in_block);
            } else remember(line.reads, g.known.get(), p.e, in_block);
        }
    };
    if (h.of.size() == 1) one_group(h.of[0], a.lanes);
    else each_group(h, a.lanes, [&](Lanes& g) { one_group(g, g.lanes); });
    if (a.strong && (a.write || !locations.empty())) {
        bool fenced = !locations.empty();
        for (const Lanes& g : h.of) fenced |= g.fenced[0] || g.fenced[1] || g.fenced[2];
        if (fenced)
            for (uint32_t left = a.lanes; left;) {
                const uint64_t at = a.at[__builtin_ctz(left)];
                uint32_t same = 0;
                each(left, [&](unsigned l) { same |= uint32_t(a.at[l] == at) << l; });
                left &= ~same;
                const uint64_t key = of ? uint64_t(of->shared.data() + RESERVED_SHARED + at) : at;
                synchronize(w, key, same, a.read, a.write, a.strong - 1u);
            }
    }
}

// ---- what orders --------------------------------------------------------------------------------------------------------

uint32_t new_slot(uint64_t block, uint32_t rank)
{
    if (free_slots.empty()) {
        if (now.empty()) now.push_back(0), born.push_back(0), history.emplace_back(), twins.push_back(0);  // 0: none
        free_slots.push_back(uint32_t(now.size()));
        now.push_back(0), born.push_back(0), history.emplace_back(), twins.push_back(0);
    }
    const uint32_t slot = free_slots.back();
    free_slots.pop_back();
    if (slot < is_agent.size()) is_agent[slot] = false;
    born[slot] = ++now[slot];
    if (twins[slot]) born[twins[slot]] = born[slot];
    history[slot].push_back({now[slot], block, rank});
    return slot;
}

void free_slot(uint32_t slot)
{
    ++now[slot];
    free_slots.push_back(slot);
}

void now_agent(uint32_t slot)
{
    if (is_agent.size() <= slot) is_agent.resize(slot + 1);
    is_agent[slot] = true;
}

uint32_t agent_of(Warp& w, Agent agent)
{
    uint32_t& slot = w.history->agents[unsigned(agent)];
    if (!slot) slot = new_slot(w.block->number, w.rank), now_agent(slot);
    return slot;
}

void begin_races() { end_races(); }

void end_races()
{
    now.clear(), born.clear(), twins.clear(), is_agent.clear(), history.clear(), free_slots.clear(), locations.clear();
    pages.clear(), rows.clear(), free_rows.clear(), spare_histories.clear();
    last_page = ~0ull, last_lines = nullptr;
}

void enter(Block& block)
{
    if (spare_histories.empty()) spare_histories.emplace_back(new BlockHistory());
    block.history = std::shared_ptr<BlockHistory>(spare_histories.back().release());
    spare_histories.pop_back();
    block.history->lines.resize(launch.shared_bytes / LINE + 1);
    for (auto& warp : block.warps) {
        warp->history.reset(new WarpHistory());
        WarpHistory& h = *warp->history;
        h.slot = new_slot(block.number, warp->rank), h.full = warp->alive;
        h.of.push_back({warp->alive, nullptr, {}, {}, {}});
    }
}

void leave(Block& block)
{
    for (auto& warp : block.warps) {
        if (!warp->history) continue;
        const WarpHistory& h = *warp->history;
        if (h.reading && *std::max_element(h.waited[unsigned(Agent::Bulk)], h.waited[unsigned(Agent::Bulk)] + WARP) < h.reading)
            fault(*warp, &launch.program->ops[h.reader], 0, Fault::Async, Why::UnderWay, Where::Shared, 0, 0, false);
        free_slot(warp->history->slot);
        for (const uint32_t agent : warp->history->agents)
            if (agent) free_slot(agent);
        warp->history.reset();
    }
    for (const uint32_t agent : block.history->agents) free_slot(agent);
    for (LineHistory& line : block.history->lines) {
        while (!line.reads.empty()) drop(line.reads, line.reads.size() - 1);
        while (!line.writes.empty()) drop(line.writes, line.writes.size() - 1);
    }
    block.history.reset();
}

void meet_block(Block& block)
{
    if (!judging.races) return;
    Shared all, first;
    for (const auto& warp : block.warps) {
        if (!warp->alive) continue;
        each_group(*warp->history, warp->alive, [&](Lanes& g) { take_up(g, 0); });
        publish(all, *warp, warp->alive, &first);
    }
    if (!all) return;
    all->prune();
    for (const auto& warp : block.warps)
        if (warp->alive) become(*warp, warp->alive, all), now[warp->history->slot]++;
}

void meet_lanes(Warp& w, uint32_t lanes)
{
    if (!judging.races || !lanes) return;
    Shared all;
    each_group(*w.history, lanes, [&](Lanes& g) { take_up(g, 0); });
    publish(all, w, lanes);
    all->prune();
    become(w, lanes, all);
    now[w.history->slot]++;
}

void arrive_named(Warp& w, uint32_t lanes, unsigned barrier)
{
    if (!judging.races) return;
    publish(w.block->history->named[barrier], w, lanes);
    now[w.history->slot]++;
}

void leave_named(Warp& w, uint32_t lanes, unsigned barrier)
{
    if (judging.races) learn(w, lanes, w.block->history->named[barrier]);
}

void forget_named(Block& block, unsigned barrier)
{
    if (judging.races) block.history->named[barrier].reset();
}

void fence(Warp& w, uint32_t lanes, unsigned scope)
{
    if (!judging.races) return;
    WarpHistory& h = *w.history;
    each_group(h, lanes, [&](Lanes& g) {
        take_up(g, 0);
        for (unsigned s = 0; s <= scope; s++) g.released[s] = g.known, g.fenced[s] = now[h.slot];
    });
    now[h.slot]++;
}

void acquire(Warp& w, uint32_t lanes, unsigned scope)
{
    if (judging.races) each_group(*w.history, lanes, [&](Lanes& g) { take_up(g, scope); });
}

void arrive_bytes(Warp& w, uint32_t lanes, BytesBarrier& barrier)
{
    if (!judging.races) return;
    publish(barrier.arriving, w, lanes);
    now[w.history->slot]++;
}

void complete_bytes(BytesBarrier& barrier)
{
    if (!barrier.arriving) return;
    if (barrier.released) own(barrier.arriving).join(*barrier.released);
    barrier.released = barrier.arriving;
    own(barrier.released).prune();
    barrier.arriving.reset();
}

void wait_bytes(Warp& w, uint32_t lanes, const BytesBarrier& barrier)
{
    if (judging.races) learn(w, lanes, barrier.released);
}

// An arrival that releases has a fence before it in the machine code.
void arrive_cluster(Warp& w, uint32_t lanes)
{
    if (!judging.races) return;
    WarpHistory& h = *w.history;
    uint32_t releasing = 0;
    each_group(h, lanes, [&](Lanes& g) { releasing |= g.fenced[1] && g.fenced[1] + 1 == now[h.slot] ? g.lanes : 0; });
    if (releasing) publish(w.block->cluster->front()->cluster_arriving, w, releasing);
    now[h.slot]++;
}

void complete_cluster(std::vector<Block*>& cluster)
{
    for (Block* block : cluster) block->others_started = true;
    if (!judging.races) return;
    cluster.front()->cluster_released = cluster.front()->cluster_arriving;
    cluster.front()->cluster_arriving.reset();
}

void wait_cluster(Warp& w, uint32_t lanes)
{
    if (judging.races) learn(w, lanes, w.block->cluster->front()->cluster_released);
}

// ---- agents -------------------------------------------------------------------------------------------------------------

void close_group(Warp& w, Agent agent)
{
    if (judging.races) now[agent_of(w, agent)]++;
}

void wait_group(Warp& w, uint32_t lanes, Agent agent, unsigned left)
{
    if (!judging.races) return;
    const uint32_t slot = w.history->agents[unsigned(agent)];
    if (!slot || now[slot] < born[slot] + 1 + left) return;
    each(lanes, [&](unsigned l) { w.history->waited[unsigned(agent)][l] = now[slot] - 1 - left; });
}

void begin_bytes(Warp& w, Block& of, BytesBarrier& barrier)
{
    if (!judging.races) return;
    barrier.agent = new_slot(of.number, w.rank), now_agent(barrier.agent);
    of.history->agents.push_back(barrier.agent);
}

void arrive_copies(Warp& w, uint32_t lanes, BytesBarrier& barrier)
{
    if (!judging.races) return;
    const uint32_t slot = agent_of(w, Agent::Copies);
    own(barrier.arriving).know_some(slot, lanes, now[slot]);
    now[slot]++;
}

void complete_copy(BytesBarrier& barrier)
{
    if (judging.races) own(barrier.arriving).know(barrier.agent, now[barrier.agent]++);
}

void check_span(Warp& w, const Op& op, uint32_t lanes, Block* of, uint64_t from, uint64_t bytes, bool write, Agent agent, BytesBarrier* barrier)
{
    WarpHistory& h = *w.history;
    const uint32_t slot = barrier ? barrier->agent : agent_of(w, agent);
    const Access access = {&op, lanes, nullptr, 1, !write, write, 0, nullptr, 0};
    LineEntry blank = {{0, 0}, slot, now[slot], op.number, lanes, 0, 0, 2, 0, LineEntry::SAME};
    Lanes* group = nullptr;
    for (Lanes& g : h.of)
        if (g.lanes & lanes) group = &g;
    if (!group) return;
    if (!barrier && agent == Agent::Bulk && of && !write) h.reading = now[slot], h.reader = op.number;
    const Check check{w, of, access, *group};
    for (uint64_t at = from; at < from + bytes;) {
        const uint64_t number = at / LINE, next = std::min(from + bytes, (number + 1) * LINE);
        LinePiece p = {number, blank};
        mark(p.e, unsigned(at % LINE), unsigned(next - at));
        at = next;
        LineHistory& line = of ? of->history->lines[number] : line_of(number);
        for (const LineEntry& e : line.writes)
            if (e.slot != slot || e.count != p.e.count) {
                check.against(p, e, true);
                if (!write) check.covered(p, e);
            }
        if (write) {
            for (const LineEntry& e : line.reads)
                if (e.slot != slot || e.count != p.e.count) check.against(p, e, false);
            clear_bytes(line.reads, p.e), clear_bytes(line.writes, p.e);
            line.writes.push_back(p.e);
        } else {
            bool known = false;
            for (LineEntry& e : line.reads)
                if (e.slot == slot && e.count == p.e.count && e.lanes == p.e.lanes && e.kind == LineEntry::SAME)
                    e.bytes[0] |= p.e.bytes[0], e.bytes[1] |= p.e.bytes[1], known = true;
            if (!known) line.reads.push_back(p.e);
        }
    }
}

void fence_proxy(Warp& w, uint32_t lanes)
{
    if (!judging.races) return;
    WarpHistory& h = *w.history;
    const auto twin = [&](uint32_t slot) {
        if (!twins[slot]) {
            const uint32_t made = new_slot(0, 0);
            twins[slot] = made, born[made] = born[slot];
        }
        return twins[slot];
    };
    each_group(h, lanes, [&](Lanes& g) {
        Clock& clock = own(g.known);
        const std::vector<uint32_t> all = clock.all;
        const std::vector<Clock::Some> some = clock.some;
        for (uint32_t slot = 1; slot < all.size(); slot++)
            if (all[slot] && !history[slot].empty() && history[slot].back().count && all[slot] >= born[slot]) clock.know(twin(slot), all[slot]);
        for (const Clock::Some& s : some)
            if (s.count >= born[s.slot]) clock.know_some(twin(s.slot), s.lanes, s.count);
        if ((g.lanes & h.full) == h.full) clock.know(twin(h.slot), now[h.slot]);
        else clock.know_some(twin(h.slot), g.lanes, now[h.slot]);
    });
    now[h.slot]++;
}

}  // namespace rung_machine
