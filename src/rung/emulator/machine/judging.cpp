// Bounds, inputs, memory that nothing has written, what memory begins with, and the seed's numbers.
#include "judging.h"

#include <algorithm>

namespace rung_machine {

Judged judged;
Judging judging;

void fault(const Warp& w, const Op* op, unsigned lane, Fault kind, Why why, Where memory, uint64_t address, unsigned bytes, bool write)
{
    extern const Op* executing;
    if (op) executing = op;
    judged.kind = uint32_t(kind), judged.why = uint32_t(why), judged.memory = uint32_t(memory), judged.write = write;
    judged.address = address, judged.bytes = bytes, judged.thread = w.rank * WARP + lane;
    std::copy(w.block->index, w.block->index + 3, judged.block);
    static const char* const WORDS[] = {"", "barrier", "deadlock", "bounds", "shared", "unsupported", "trap", "race", "async", "unwritten"};
    fail(w, "%s", WORDS[uint32_t(kind)]);
}

namespace {

const Region* region_of(uint64_t at)
{
    const auto after = std::upper_bound(judging.regions.begin(), judging.regions.end(), at, [](uint64_t a, const Region& r) { return a < r.from; });
    return after == judging.regions.begin() || at >= after[-1].to ? nullptr : &after[-1];
}

// The lowest and the highest address of the lanes.
void range_of(const Access& a, uint64_t& low, uint64_t& high)
{
    low = ~0ull, high = 0;
    for (unsigned l = 0; l < WARP; l++) {
        const uint64_t off = -uint64_t(~a.lanes >> l & 1), at = a.at[l];
        low = std::min(low, at | off), high = std::max(high, at & ~off);
    }
}

bool all_set(const uint8_t* bits, uint64_t first, unsigned count)
{
    for (uint64_t i = first; i < first + count; i++)
        if (!(bits[i / 8] >> i % 8 & 1)) return false;
    return true;
}
void set(uint8_t* bits, uint64_t first, unsigned count)
{
    for (uint64_t i = first; i < first + count; i++) bits[i / 8] = uint8_t(bits[i / 8] | 1u << i % 8);
}

}  // namespace

void judge_global(Warp& w, const Access& a)
{
    const Region* one = nullptr;
    if (!judging.regions.empty()) {
        uint64_t low, high;
        range_of(a, low, high);
        static const Region* last;
        static uint64_t last_from, last_to;
        extern uint64_t regions_changed;
        static uint64_t seen;
        if (seen != regions_changed) last = nullptr, seen = regions_changed, last_from = last_to = 0;
        if (low < last_from || high + a.bytes > last_to) {
            last = region_of(low);
            if (last) last_from = last->from, last_to = last->to;
        }
        if (last && low >= last_from && high + a.bytes <= last_to) one = last;
        const auto look = [&](const Region* region, unsigned l) {
            if (!region || a.at[l] + a.bytes > region->to)
                fault(w, a.op, l, Fault::Bounds, a.at[l] < 1 << 16 ? Why::Null : Why::Outside, Where::Global, region ? region->to : a.at[l], a.bytes, a.write);
            if (a.write && region->flags & ONLY_READ) fault(w, a.op, l, Fault::Bounds, Why::Input, Where::Global, a.at[l], a.bytes, true);
        };
        if (!one) each(a.lanes, [&](unsigned l) { look(region_of(a.at[l]), l); });
        else if (a.write && one->flags & ONLY_READ) look(one, unsigned(__builtin_ctz(a.lanes)));
        if (judging.unwritten)
            each(a.lanes, [&](unsigned l) {
                const Region* const region = one ? one : region_of(a.at[l]);
                if (!region->written) return;
                if (a.read && !all_set(region->written, a.at[l] - region->from, a.bytes))
                    fault(w, a.op, l, Fault::Unwritten, Why::None, Where::Global, a.at[l], a.bytes, false);
                if (a.write) set(region->written, a.at[l] - region->from, a.bytes);
            });
    }
    if (judging.races && !(one && one->flags & ONLY_READ)) check_races(w, nullptr, a);
}

void judge_shared(Warp& w, Block& of, const Access& a)
{
    if (judging.unwritten) {
        if (of.written.empty()) of.written.resize(of.shared.size() / 8 + 1);
        each(a.lanes, [&](unsigned l) {
            if (a.read && !all_set(of.written.data(), a.at[l], a.bytes))
                fault(w, a.op, l, Fault::Unwritten, Why::None, Where::Shared, a.at[l], a.bytes, false);
            if (a.write) set(of.written.data(), a.at[l], a.bytes);
        });
    }
    if (judging.races) check_races(w, &of, a);
}

void check_span(Warp& w, const Op& op, uint32_t lanes, Block* of, uint64_t from, uint64_t bytes, bool write, Agent agent, BytesBarrier* barrier);

void judge_span(Warp& w, const Op& op, uint32_t lanes, Block* of, uint64_t from, uint64_t bytes, bool write, Agent agent, BytesBarrier* barrier)
{
    if (!judging.on || !bytes) return;
    const unsigned lane = lanes ? unsigned(__builtin_ctz(lanes)) : 0;
    const Region* region = nullptr;
    if (!of && !judging.regions.empty()) {
        region = region_of(from);
        if (!region || from + bytes > region->to)
            fault(w, &op, lane, Fault::Bounds, from < 1 << 16 ? Why::Null : Why::Outside, Where::Global, region ? region->to : from, unsigned(bytes), write);
        if (write && region->flags & ONLY_READ) fault(w, &op, lane, Fault::Bounds, Why::Input, Where::Global, from, unsigned(bytes), true);
    }
    if (judging.unwritten) {
        if (of && of->written.empty()) of->written.resize(of->shared.size() / 8 + 1);
        uint8_t* const bits = of ? of->written.data() : region ? region->written : nullptr;
        const uint64_t first = of ? from : region ? from - region->from : 0;
        if (bits && write) set(bits, first, unsigned(bytes));
        else if (bits && !all_set(bits, first, unsigned(bytes)))
            fault(w, &op, lane, Fault::Unwritten, Why::None, of ? Where::Shared : Where::Global, from, unsigned(bytes), false);
    }
    if (judging.races && !(region && region->flags & ONLY_READ)) check_span(w, op, lanes, of, from, bytes, write, agent, barrier);
}

void judge_local(Warp& w, const Op& op, uint32_t lanes, const uint64_t* at, unsigned bytes, bool write)
{
    if (!judging.unwritten) return;
    const size_t each_lane = launch.local_bytes;
    if (w.local_written.empty()) w.local_written.resize(each_lane * WARP / 8 + 1);
    each(lanes, [&](unsigned l) {
        const uint64_t first = each_lane * l + uint32_t(at[l]);
        if (write) set(w.local_written.data(), first, bytes);
        else if (!all_set(w.local_written.data(), first, bytes))
            fault(w, &op, l, Fault::Unwritten, Why::None, Where::Local, uint32_t(at[l]), bytes, false);
    });
}

uint64_t regions_changed;

void allocated(uint64_t from, uint64_t bytes, bool lives)
{
    if (judging.regions.empty()) return;
    std::vector<Region>& all = judging.regions;
    const auto place = std::lower_bound(all.begin(), all.end(), from, [](const Region& r, uint64_t a) { return r.from < a; });
    if (lives) all.insert(place, {from, from + bytes, nullptr, 0, 0});
    else if (place != all.end() && place->from == from) all.erase(place);
    regions_changed++;
}

// NaN in every format; huge values of either sign; negative zero; random bits.
void poison(void* to, size_t bytes)
{
    static const uint32_t PATTERNS[] = {0xffffffffu, 0x7f7f7f7fu, 0xff7fff7fu, 0x80008000u};
    if (!judging.poison) return;
    const unsigned number = (judging.poison - 1) % 5;
    uint32_t noise = judging.seed * 2654435761u + 12345u;
    uint8_t* const at = static_cast<uint8_t*>(to);
    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        if (number == 4) noise = noise * 1664525u + 1013904223u;
        const uint32_t word = number == 4 ? noise ^ noise >> 15 : PATTERNS[number];
        memcpy(at + i, &word, 4);
    }
}

uint64_t drawn()  // splitmix64
{
    static uint64_t state, of_launch = ~0ull;
    extern uint64_t launches;
    if (of_launch != launches) of_launch = launches, state = judging.seed;
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull, z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

}  // namespace rung_machine
