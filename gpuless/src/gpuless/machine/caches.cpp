// Shared memory and L1, which have one data path; the share of L2 and of DRAM that an SM has when all do the same; TMA.
#include "timing.h"

#include <set>
#include <unordered_set>

namespace rung_machine {
namespace {

struct Part  // a region of memory
{
    uint64_t from, to;                   // sectors
    double readers = 1, writers = 1;     // blocks that read, that write each of its sectors
    bool early = false, by_all = false;  // the first blocks have read all of it; every block reads all of it
    bool kept = false;                   // an earlier launch has left it in L2
};
std::vector<Part> parts;
std::vector<std::pair<uint64_t, uint64_t>> left,
    touched_now;  // regions that launches have touched since nothing was in L2; by the last

const Part* part_of(uint64_t sector)
{
    const auto next =
        std::upper_bound(parts.begin(), parts.end(), sector, [](uint64_t s, const Part& p) { return s < p.from; });
    return next == parts.begin() || sector >= std::prev(next)->to ? nullptr : &*std::prev(next);
}

template <class F>
void each_sector(const Stream& s, F f)
{
    const auto all = [&](uint64_t first, uint32_t count, bool store) {
        for (uint32_t i = 0; i < count; i++) f(s.sectors[first + i], store);
    };
    for (const auto& [event, _] : s.events)
        if (const GlobalAccess* const of = std::get_if<GlobalAccess>(&event))
            all(of->first, of->count, of->use == GlobalAccess::STORE);
        else if (const BulkCopy* const copy = std::get_if<BulkCopy>(&event))
            all(copy->first, copy->count, copy->store);
}

double covered(const std::unordered_set<uint64_t>& a, const std::unordered_set<uint64_t>& b)
{
    size_t common = 0;
    for (const uint64_t sector : a) common += b.count(sector);
    return a.empty() ? 0 : double(common) / double(a.size());
}

constexpr double STAYS = 0.6;  // of L2, that launches find what earlier ones touched
constexpr size_t WAYS = 4;

}  // namespace

double writers_of(uint64_t sector)
{
    const Part* const part = part_of(sector);
    return part ? part->writers : 1;
}

void forget_launches() { left.clear(), touched_now.clear(); }

void remember_launch()
{
    left.insert(left.end(), touched_now.begin(), touched_now.end());
    touched_now.clear();
}

// Blocks that read one sector: all blocks' sectors over those of the region. Whether neighbours share tells how soon a
// region has been read as a whole: by neighbours, row after row of blocks; by distant ones, as soon as one row of them
// has run.
void measure_sharing(const Constants& c, uint64_t blocks, double together, double sets)
{
    parts.clear();
    std::vector<std::pair<uint64_t, uint64_t>> regions;
    for (const Region& r : launch.regions) regions.push_back({r.from / 32, (r.to + 31) / 32});
    if (regions.empty()) {
        std::vector<uint64_t> all;
        for (const auto& s : streams) each_sector(*s, [&](uint64_t sector, bool) { all.push_back(sector); });
        std::sort(all.begin(), all.end());
        for (const uint64_t sector : all)
            if (regions.empty() || sector > regions.back().second + (1 << 15))
                regions.push_back({sector, sector + 1});
            else
                regions.back().second = sector + 1;
    }
    std::sort(regions.begin(), regions.end());
    for (const auto& r : regions) parts.push_back({r.first, r.second});
    std::unordered_map<uint32_t, std::unordered_map<const Part*, std::unordered_set<uint64_t>>> read,
        written;  // by unit
    for (const auto& s : streams)
        each_sector(*s, [&](uint64_t sector, bool store) {
            if (const Part* part = part_of(sector)) (store ? written : read)[s->unit][part].insert(sector);
        });
    const double units = double(blocks) / double(launch.cluster[0] * launch.cluster[1] * launch.cluster[2]);
    double touched = 0;
    for (Part& part : parts) {
        double reads = 0, writes = 0, near = 0, far = 0;
        std::vector<uint32_t> known;
        for (auto& [unit, of] : read) {
            reads += double(of[&part].size());
            if (!of[&part].empty()) known.push_back(unit);
        }
        for (auto& [unit, of] : written) writes += double(of[&part].size());
        if (reads + writes == 0) continue;
        std::sort(known.begin(), known.end());
        const double sampled = double(chosen_units().size());
        const double size = double(part.to - part.from), each = reads / sampled;
        part.readers = std::min(std::max(1.0, each * units / size), units);
        part.writers = std::max(1.0, writes / sampled * units / size);
        for (size_t i = 1; i < known.size(); i++)
            if (known[i] == known[i - 1] + 1)
                near = std::max(near, covered(read[known[i - 1]][&part], read[known[i]][&part]));
        if (known.size() > 1) far = covered(read[known.front()][&part], read[known.back()][&part]);
        part.by_all = far > 0.9 && near > 0.9;
        part.early = part.by_all || (near < 0.1 && part.readers > 1.5 && size / std::max(each, 1.0) <= together);
        touched += std::min(size, (reads + writes) / sampled * units) * 32;
    }
    for (Part& part : parts)
        part.kept =
            touched *
                (std::find(left.begin(), left.end(), std::make_pair(part.from, part.to)) != left.end() ? 1 : sets) <
            STAYS * c.second_cache_size;
    std::set<std::pair<uint64_t, uint64_t>> here;
    for (auto& [unit, of] : read)
        for (auto& [part, sectors] : of) here.insert({part->from, part->to});
    for (auto& [unit, of] : written)
        for (auto& [part, sectors] : of) here.insert({part->from, part->to});
    touched_now.assign(here.begin(), here.end());
}

Memories::Memories(const Constants& constants, double used_shared, double active_)
    : c(constants),
      second_rate(std::min(c.port_bytes, c.second_cache_bytes / active_)),
      memory_rate(std::min(c.port_bytes, c.memory_bytes / active_)),
      active(active_),
      sets(std::max<size_t>(4, size_t(std::max(0.0, c.first_cache_size - used_shared)) / 128 / WAYS)),
      lines(sets)
{ memory_free = c.cold_start; }

double Memories::access(double at, double passes) { return path(at, passes) + c.shared_latency; }

double Memories::from_second(double at, uint64_t sector, uint32_t copy, bool first_wave)
{
    const double asked = std::max(second_free, at);
    second_free = asked + 32 / second_rate;
    const Part* const part = part_of(sector);
    if (part && part->kept) return asked + c.second_cache_latency;
    const double read = std::max(memory_free, asked);
    memory_free = read + 32 / memory_rate / (part ? part->readers : 1);
    if (!first_wave && part && part->early) return std::max(asked + c.second_cache_latency, read);
    const auto [known, unknown] =
        fetched.try_emplace(sector / uint64_t(c.fetch) | uint64_t(copy) << 44, read + c.memory_latency);
    return unknown ? known->second : std::max(asked + c.second_cache_latency, known->second);
}

// `copy`: of a block that stands for others, too, which touch other memory.
double Memories::load(double at, const Stream& s, const GlobalAccess& of, uint32_t copy, bool first_wave, bool keeps)
{
    const double known = path(at, std::max({1.0, of.lines * c.line, of.count * 32 / c.path_bytes}));
    double done = known + c.first_cache_latency;
    uint64_t last = ~0ull;
    for (uint32_t i = 0; i < of.count; i++) {
        uint64_t sector = s.sectors[of.first + i];
        const Part* const part = part_of(sector);
        const uint64_t place = sector | (part && part->by_all ? 0 : uint64_t(copy) << 44), line = place / 4;
        auto& set = lines[(line ^ line >> 9 ^ copy * 0x9e37u) % sets];
        Line* found = nullptr;
        for (Line& way : set)
            if (way.tag == line + 1) found = &way;
        if (keeps && found && found->valid >> (place & 3) & 1) {
            found->used = known;
            const auto under_way = coming.find(place);
            if (under_way != coming.end()) {
                if (under_way->second > known) {  // on its way: it waits as what is not there
                    if (line != last) path_free += c.pending_line, last = line;
                    done = std::max(done, under_way->second);
                } else
                    coming.erase(under_way);
            }
            continue;
        }
        if (line != last) path_free += c.missed_line, last = line;
        const double comes = from_second(path_free, sector, part && part->by_all ? 0 : copy, first_wave);
        done = std::max(done, comes);
        if (!keeps) continue;
        if (!found) {
            found = &set[0];
            for (Line& way : set)
                if (way.used < found->used) found = &way;
            found->tag = line + 1, found->valid = 0;
        }
        found->used = known, found->valid |= uint8_t(1 << (place & 3)), coming[place] = comes;
    }
    if (of.again) {  // what all read of one line, a slice of L2 gives to one after the other
        const Part* const part = part_of(s.sectors[of.first]);
        double& free = line_free[s.sectors[of.first] / 4];
        free = std::max(free, known) + of.again * std::min(active, part ? part->readers : 1) / c.line_sectors;
        done = std::max(done, free + c.second_cache_latency);
    }
    return done;
}

// What leaves the SM; when it has been sent.
double Memories::send(double at, const Stream& s, uint64_t first, uint32_t sectors, uint32_t lines, double clocks_of_l2)
{
    const double sent = path(at, std::max({1.0, lines * c.line, sectors * 32 / c.path_bytes})),
                 begins = std::max(store_free, sent);
    store_free = begins + std::max({lines * c.stored_line, sectors * 32 / second_rate, clocks_of_l2});
    path_free = std::max(path_free, store_free - c.stores_wait);
    stored = std::max(stored, store_free + c.second_cache_latency);
    const Part* const part = sectors ? part_of(s.sectors[first]) : nullptr;
    memory_free = std::max(memory_free, sent) + sectors * 32 / memory_rate / (part ? part->writers : 1);
    return sent;
}

double Memories::store(double at, const Stream& s, const GlobalAccess& of, bool has_result)
{
    const double before = store_free;
    if (of.use == GlobalAccess::STORE)
        return send(at, s, of.first, of.count, of.lines, of.scattered * active / c.scattered_lines);
    const double clocks = of.count * active / (has_result ? c.atomic_results : c.atomic_sectors);
    const double sent = send(at, s, of.first, of.count, of.lines, clocks);
    return std::max(before, sent) + c.second_cache_latency + c.atomic_latency;
}

double Memories::copy(double at, const Stream& s, const BulkCopy& of, uint32_t copy, bool first_wave)
{
    double begins = std::max(engine_free, at), done = begins + c.copy_latency;
    engine_free = begins + std::max(c.copy_interval, of.bytes / c.port_bytes / 2);
    if (of.store) return std::max(done, send(begins, s, of.first, of.count, 0, 0));
    for (uint32_t i = 0; i < of.count; i++)
        done = std::max(done, from_second(begins, s.sectors[of.first + i], copy, first_wave) + c.copy_latency);
    path_free = std::max(path_free, begins) + of.bytes / c.path_bytes;
    return done;
}

}  // namespace rung_machine
