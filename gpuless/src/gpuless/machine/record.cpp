// What sampled blocks execute, for the model of time.
#include "model.h"

#include <algorithm>

namespace rung_machine {

std::vector<std::unique_ptr<Stream>> streams;

namespace {

constexpr size_t MOST = 6u << 20;                 // instructions of all
constexpr uint64_t ALONE = 4, MOST_SAMPLES = 24;  // of a grid with a block for each multiprocessor at most; of others
std::vector<uint32_t> chosen;
bool only_chosen, recording;
size_t recorded;

void add(const Warp& w, Ask h)
{
    Stream& s = *w.recorded;
    if (s.code.back() & Stream::ASKS) {
        Ask& before = s.events.back();  // lanes that do the same are told of once
        if (before.asked == h.asked && before.place == h.place && h.asked >= Asked::BYTES_BEGIN &&
            h.asked <= Asked::BYTES_WAIT) {
            if (h.asked != Asked::BYTES_WAIT && h.asked != Asked::BYTES_BEGIN) before.amount += h.amount;
            return;
        }
        before.last = false;
    }
    s.code.back() |= Stream::ASKS, h.last = true;
    s.events.push_back(h);
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

void begin_record(const uint32_t* units, uint32_t count, uint32_t only)
{
    chosen.assign(units, units + count), only_chosen = only && count, recording = only < 2;
    remember_launch();
    streams.clear(), recorded = 0;
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
    if (s.code.back() & Stream::ASKS) {
        do s.events.pop_back();
        while (!s.events.empty() && !s.events.back().last);
    }
    s.code.pop_back(), recorded--;
}

void record_request(const Warp& w, const Op& op, uint32_t lanes, const uint64_t* at, const Cost& cost)
{
    Stream& s = *w.recorded;
    Ask h{cost.shared ? Asked::SHARED : Asked::GLOBAL};
    h.store = op.stores(cost.shared), h.bytes = uint8_t(cost.bytes), h.first = s.sectors.size();
    h.passes = uint16_t(cost.shared ? cost.wavefronts : cost.lines);
    if (!cost.shared) {
        uint64_t last = ~0ull;
        each(lanes, [&](unsigned l) {
            for (uint64_t sector = at[l] / 32; sector <= (at[l] + cost.bytes - 1) / 32; sector++)
                if (sector != last) s.sectors.push_back(last = sector);
        });
        std::sort(s.sectors.begin() + long(h.first), s.sectors.end());
        s.sectors.erase(std::unique(s.sectors.begin() + long(h.first), s.sectors.end()), s.sectors.end());
        h.count = uint32_t(s.sectors.size() - h.first);
    }
    add(w, h);
}

void record_again(const Warp& w, uint32_t sectors) { w.recorded->events.back().again = uint16_t(sectors); }

void record_copy(const Warp& w, const Op&, const std::vector<Piece>& pieces, uint32_t barrier, bool signals,
                 uint32_t mask)
{
    Stream& s = *w.recorded;
    Ask h{Asked::COPY};
    h.first = s.sectors.size(), h.place = signals ? barrier + 1 : 0, h.passes = uint16_t(mask);
    for (const Piece& piece : pieces) {
        if (piece.shared) {
            if (piece.store || !signals) h.amount = piece.bytes;
            continue;
        }
        h.store |= piece.store;
        for (uint64_t sector = piece.at / 32; sector <= (piece.at + piece.bytes - 1) / 32; sector++)
            s.sectors.push_back(sector);
    }
    h.count = uint32_t(s.sectors.size() - h.first);
    add(w, h);
}

void record_barrier(const Warp& w, uint32_t number, uint32_t count, bool arrives_only)
{
    Ask h{Asked::BARRIER};
    h.place = number, h.count = count, h.store = arrives_only;
    add(w, h);
}

void record_bytes(const Warp& w, Bytes what, uint32_t at, uint32_t amount)
{
    Ask h{Asked(unsigned(Asked::BYTES_BEGIN) + unsigned(what))};
    h.place = at, h.amount = amount;
    add(w, h);
}

void record_group(const Warp& w, bool waits, Agent agent, uint32_t left)
{
    Ask h{waits ? Asked::WAIT : Asked::CLOSE};
    h.place = uint32_t(agent), h.amount = left;
    add(w, h);
}

}  // namespace rung_machine
