// What sampled blocks execute, for the model of time.
#include "timing.h"

#include <algorithm>
#include <unordered_set>

namespace rung_machine {

std::vector<std::unique_ptr<Stream>> streams;

namespace {

constexpr uint32_t SCATTERED = 24;                // lines of one store
constexpr unsigned SLICES = 64;                   // of L2, about as many
constexpr size_t MOST = 6u << 20;                 // instructions of all
constexpr uint64_t ALONE = 4, MOST_SAMPLES = 24;  // of a grid with a block for each multiprocessor at most; of others
std::vector<uint32_t> chosen;
bool only_chosen, recording;
size_t recorded;

void add(const Warp& w, const Happening& now)
{
    Stream& s = *w.recorded;
    if (s.code.back() & Stream::ACTS) {
        auto& [before, last] = s.events.back();
        if (const MbarrierUse* const more = std::get_if<MbarrierUse>(&now))
            if (MbarrierUse* const same = std::get_if<MbarrierUse>(&before);
                same && same->what == more->what && same->at == more->at) {  // lanes that do the same
                if (more->what != Bytes::WAITED && more->what != Bytes::BEGINS) same->amount += more->amount;
                return;
            }
        last = false;
    }
    s.code.back() |= Stream::ACTS;
    s.events.push_back({now, true});
}

// Atomics, by slices of L2 and, where they add floats, by address.
struct Busy
{
    double load = 0;
    std::unordered_set<uint32_t> units;
    bool swaps = false;
    uint64_t sector = 0;
};
std::unordered_map<uint64_t, Busy> busy_slices, busy_floats;

// Of those measured on an H200 ([2] in timing.def): 256 bytes, and those 512 behind them, are one slice's.
uint64_t slice_of(uint64_t sector)
{
    const uint64_t part = sector / 8;
    return (part & 1) | part >> 2 << 1;
}

void record_atomics(const Stream& s, const Op& op, uint32_t lanes, const uint64_t* at)
{
    const bool floats = op.has("F32") || op.has("F64") || op.has("F16x2") || op.has("BF16x2") || op.has("BF16_V2");
    std::array<uint64_t, WARP> sorted;
    unsigned count = 0;
    each(lanes, [&](unsigned l) { sorted[count++] = at[l]; });
    std::sort(sorted.begin(), sorted.begin() + count);
    const auto add_to = [&](std::unordered_map<uint64_t, Busy>& all, uint64_t key, uint64_t sector, double load) {
        Busy& of = all[key];
        of.load += load, of.units.insert(s.unit), of.swaps |= op.has("CAS"), of.sector = sector;
    };
    for (unsigned i = 0; i < count;) {
        const uint64_t sector = sorted[i] / 32;
        unsigned most = 0;
        while (i < count && sorted[i] / 32 == sector) {  // lanes of one address take one pass after another
            const unsigned first = i;
            while (i < count && sorted[i] == sorted[first]) i++;
            most = std::max(most, i - first);
            if (floats) add_to(busy_floats, sorted[first], sector, i - first);
        }
        add_to(busy_slices, slice_of(sector), sector, most);
    }
}

}  // namespace

// Blocks from all over the grid; the neighbours of two tell whether neighbours share memory.
std::vector<uint32_t> sample(uint64_t units, uint64_t places, uint64_t resident)
{
    const uint64_t each = (units + places - 1) / places;
    const uint64_t most = std::min(units, each == 1 ? ALONE : std::min({2 * resident, each, MOST_SAMPLES}));
    uint64_t step = std::max<uint64_t>(1, units / most);
    step -= step > 1 && step % 2 == 0;
    std::vector<uint32_t> found;
    for (uint64_t i = 0; i < most; i++) {
        found.push_back(uint32_t(i * step));
        if (step > 2 && (i == 0 || i == most / 2) && i * step + 1 < units) found.push_back(uint32_t(i * step + 1));
    }
    return found;
}

AtomicQueue atomic_queue(const Constants& c, uint64_t blocks)
{
    const uint32_t cluster = launch.cluster[0] * launch.cluster[1] * launch.cluster[2];
    const double scale = double(blocks) / double(cluster) / double(std::max<size_t>(1, chosen.size()));
    AtomicQueue longest;
    const auto consider = [&](double clocks, bool swaps) {
        if (clocks > longest.clocks) longest = {clocks, swaps};
    };
    // What several of the sampled blocks touch, all blocks do.
    const auto whole = [&](const Busy& of) {
        return of.load * (of.units.size() > 1 ? std::max(1.0, scale) : std::min(writers_of(of.sector), scale));
    };
    std::unordered_map<uint64_t, Busy> by_slice;
    for (const auto& [number, of] : busy_slices) {
        Busy& all = by_slice[number * 0x9e3779b97f4a7c15ull >> 40 & (SLICES - 1)];
        all.load += whole(of), all.swaps |= of.swaps && of.units.size() > 1;
    }
    for (const auto& [_, of] : by_slice) consider(of.load * c.atomic_pass, of.swaps);
    for (const auto& [_, of] : busy_floats) consider(whole(of) * c.atomic_float, false);
    return longest;
}

void begin_record(const uint32_t* units, uint32_t count, uint32_t only)
{
    chosen.assign(units, units + count), only_chosen = only && count, recording = only < 2;
    remember_launch();
    streams.clear(), busy_slices.clear(), busy_floats.clear(), recorded = 0;
}

bool records_only() { return only_chosen; }
const std::vector<uint32_t>& chosen_units() { return chosen; }

void begin_record_of(Warp& w)
{
    w.recorded = nullptr;
    if (chosen.empty() || !recording ||
        (!only_chosen && std::find(chosen.begin(), chosen.end(), w.block->unit) == chosen.end()))
        return;
    streams.emplace_back(new Stream{w.block->number, w.rank, w.block->in_cluster, w.block->unit, {}, {}, {}});
    w.recorded = streams.back().get();
}

void record(Warp& w, const Op& op, bool active)
{
    if (++recorded > MOST)
        fail(w, RUNG_UNSUPPORTED,
             "the sampled blocks execute more than %zu instructions, too many for the model of time", MOST);
    w.recorded->code.push_back(op.number | (active ? Stream::ACTIVE : 0));
}

void forget_last(Warp& w)
{
    Stream& s = *w.recorded;
    if (s.code.back() & Stream::ACTS) {
        do s.events.pop_back();
        while (!s.events.empty() && !s.events.back().second);
    }
    s.code.pop_back(), recorded--;
}

// Lanes of an atomic that share a bank go one after another, those of one address, too.
static uint32_t busiest_bank(uint32_t lanes, const uint64_t* at)
{
    std::array<uint8_t, 32> of_bank = {};
    each(lanes, [&](unsigned l) { of_bank[at[l] / 4 % 32]++; });
    return *std::max_element(of_bank.begin(), of_bank.end());
}

void record_request(const Warp& w, const Op& op, uint32_t lanes, const uint64_t* at, const Cost& cost)
{
    Stream& s = *w.recorded;
    if (cost.shared) {
        const bool adds_up = op.has("POPC");  // the lanes of one address first
        return add(w, SharedAccess{op.way == Way::ATOMIC && !adds_up ? busiest_bank(lanes, at) : cost.wavefronts});
    }
    const size_t first = s.sectors.size();
    uint64_t last = ~0ull;
    each(lanes, [&](unsigned l) {
        for (uint64_t sector = at[l] / 32; sector <= (at[l] + cost.bytes - 1) / 32; sector++)
            if (sector != last) s.sectors.push_back(last = sector);
    });
    std::sort(s.sectors.begin() + long(first), s.sectors.end());
    s.sectors.erase(std::unique(s.sectors.begin() + long(first), s.sectors.end()), s.sectors.end());
    if (op.way == Way::ATOMIC) record_atomics(s, op, lanes, at);
    const auto use = op.way == Way::ATOMIC    ? GlobalAccess::ATOMIC
                     : op.stores(cost.shared) ? GlobalAccess::STORE
                                              : GlobalAccess::LOAD;
    // Lines that it touches apart, and of which it leaves bytes to others.
    const bool scattered = cost.lines >= SCATTERED && cost.unique_bytes < 32 * cost.sectors;
    add(w, GlobalAccess{use, uint8_t(cost.bytes), uint16_t(scattered ? cost.lines : 0), uint16_t(cost.lines), 0,
                        uint32_t(s.sectors.size() - first), first});
}

void record_constants(const Warp& w, uint32_t lanes, const uint64_t* at)
{
    std::array<uint64_t, WARP> addresses;
    const auto end = [&] {
        auto to = addresses.begin();
        each(lanes, [&](unsigned l) { *to++ = at[l]; });
        std::sort(addresses.begin(), to);
        return std::unique(addresses.begin(), to);
    }();
    add(w, ConstantAccess{uint32_t(end - addresses.begin())});
}

void record_again(const Warp& w, uint32_t sectors)
{ std::get<GlobalAccess>(w.recorded->events.back().first).again = uint16_t(sectors); }

void record_copy(const Warp& w, const Op&, const std::vector<Piece>& pieces, uint32_t barrier, bool signals,
                 uint32_t mask)
{
    Stream& s = *w.recorded;
    BulkCopy made = {false, signals, uint16_t(mask), 0, barrier, 0, s.sectors.size()};
    for (const Piece& piece : pieces) {
        if (piece.shared) {
            if (piece.store || !signals) made.bytes = piece.bytes;
            continue;
        }
        made.store |= piece.store;
        for (uint64_t sector = piece.at / 32; sector <= (piece.at + piece.bytes - 1) / 32; sector++)
            s.sectors.push_back(sector);
    }
    made.count = uint32_t(s.sectors.size() - made.first);
    add(w, made);
}

void record_barrier(const Warp& w, uint32_t number, uint32_t count, bool arrives_only)
{ add(w, BarrierArrival{number, count, !arrives_only}); }

void record_bytes(const Warp& w, Bytes what, uint32_t at, uint32_t amount) { add(w, MbarrierUse{what, at, amount}); }

void record_group(const Warp& w, bool waits, Agent agent, uint32_t left)
{
    if (waits)
        add(w, GroupAwaited{agent, left});
    else
        add(w, GroupClosed{agent});
}

}  // namespace rung_machine
