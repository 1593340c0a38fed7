// What each lane of a warp knows to have happened, and what passes that on: meetings of lanes, barriers, fences with
// the atomics and strong accesses beside them, byte barriers, waits for asynchronous work. A warp's lanes mostly know
// the same, which is kept once; what some of them have learned alone is kept for each until they meet.
#include <algorithm>

#include "machine.h"
#include "races.h"

namespace rung_machine {
namespace {

// What atomics and strong stores release at an address, by domain: kept as seen by no cluster, all of it in `others`.
std::unordered_map<uint64_t, std::vector<std::pair<uint64_t, Clock>>> locations;

constexpr uint32_t NO_UNIT = ~0u;
constexpr size_t MOST_PENDING = 64;

unsigned all_warps(const Block& block) { return unsigned(block.warps.size() * block.cluster->size()); }

void raise(uint32_t& to, uint32_t from) { to = std::max(to, from); }

uint32_t& at_index(std::vector<uint32_t>& of, size_t index)
{
    if (of.size() <= index) of.resize(index + 1);
    return of[index];
}

void join(Times& to, const Times& from)
{
    if (to.of.size() < from.of.size()) to.of.resize(from.of.size());
    for (size_t i = 0; i < from.of.size(); i++) raise(to.of[i], from.of[i]);
    for (const auto& [who, time] : from.lanes) raise(to.lanes[who], time);
}

void join(Clock& to, const Clock& from)
{
    join(to.own, from.own), join(to.proxied, from.proxied), join(to.reads, from.reads);
    for (const auto& [who, time] : from.others) raise(to.others[who], time);
    to.waited |= from.waited, to.any = true;
}

// Of another cluster's lanes.
void join_foreign(Clock& to, uint32_t to_unit, const Clock& from, uint32_t from_unit)
{
    if (to_unit == from_unit) return join(to, from);
    for (size_t i = 0; i < from.own.of.size(); i++)
        if (from.own.of[i]) raise(to.others[foreign(from_unit, uint32_t(i), WARP)], from.own.of[i]);
    for (const auto& [who, time] : from.own.lanes) raise(to.others[foreign(from_unit, who / WARP, who % WARP)], time);
    for (const auto& [who, time] : from.others) {
        if (uint32_t(who >> 32) != to_unit) {
            raise(to.others[who], time);
            continue;
        }
        const uint32_t index = uint32_t(who) >> 8, lane = who & 255;
        raise(lane == WARP ? at_index(to.own.of, index) : to.own.lanes[index * WARP + lane], time);
    }
    to.waited |= from.waited, to.any = true;
}

bool are_all(const Warp& w, uint32_t lanes) { return (lanes & w.alive) == w.alive; }

uint32_t first_lanes(const Warp& w)  // those that it began with
{
    const unsigned threads = launch.block[0] * launch.block[1] * launch.block[2] - w.rank * WARP;
    return threads >= WARP ? ALL : (1u << threads) - 1;
}

// What happened in these lanes of the warp until now.
void add_past(const Warp& w, Times& to, uint32_t lanes, uint32_t time)
{
    const Order& o = *w.order;
    if (!(first_lanes(w) & ~lanes)) return raise(at_index(to.of, o.index), time);
    each(lanes, [&](unsigned l) {
        raise(to.lanes[o.index * WARP + l], time);
        if (!o.met_at.empty())
            for (unsigned other = 0; other < WARP; other++)
                if (const uint32_t met = o.met_at[l * WARP + other]) raise(to.lanes[o.index * WARP + other], met);
    });
}

// Groups of an agent up to a number for each of these lanes.
template <class Groups>
void add_groups(const Warp& w, Times& to, Agent agent, uint32_t lanes, const Groups& groups)
{
    const auto& of = groups[unsigned(agent)];
    const unsigned index = index_of(w, agent);
    uint32_t least = first_lanes(w) & ~lanes ? 0 : ~0u;
    each(first_lanes(w), [&](unsigned l) { least = std::min(least, of[l]); });
    each(lanes, [&](unsigned l) {
        if (of[l]) raise(of[l] > least ? to.lanes[index * WARP + l] : at_index(to.of, index), of[l]);
    });
}

// What lanes have waited for of their own copies.
void add_copies(const Warp& w, Times& to, uint32_t lanes)
{
    const Order& o = *w.order;
    if (!(o.waits_apart & lanes)) return;
    for (const Agent agent : {Agent::Copy, Agent::Out}) add_groups(w, to, agent, o.waits_apart & lanes, o.waited);
}

// What lanes know, with their own past.
void add_known(const Warp& w, Clock& to, uint32_t lanes, uint32_t time)
{
    const Order& o = *w.order;
    join(to, o.known);
    each(o.apart & lanes, [&](unsigned l) { join(to, *o.beyond[l]); });
    add_past(w, to.own, lanes, time), add_copies(w, to.own, lanes);
}

// Lanes learn it; all of a warp at once, or each for itself.
void learn(Warp& w, uint32_t lanes, const Clock& what)
{
    Order& o = *w.order;
    if (are_all(w, lanes)) {
        join(o.known, what);
        return;
    }
    each(lanes, [&](unsigned l) { join(o.beyond_of(l), what); });
}

void remember_pending(std::vector<Pending>& pending, uint32_t lanes, const Clock& read, uint32_t unit)
{
    auto found = std::find_if(pending.begin(), pending.end(), [&](const Pending& p) { return p.lanes == lanes; });
    if (found == pending.end()) {
        if (pending.size() >= MOST_PENDING) {  // as if all had read all
            for (size_t i = 1; i < pending.size(); i++)
                pending[0].lanes |= pending[i].lanes, join(pending[0].clock, pending[i].clock);
            pending.resize(1);
        }
        pending.push_back({lanes, Clock()}), found = pending.end() - 1;
    }
    join_foreign(found->clock, unit, read, NO_UNIT);
}

void learn_pending(Warp& w, std::vector<Pending>& pending, uint32_t lanes)
{
    bool done = false;
    for (Pending& p : pending) {
        const uint32_t mine = p.lanes & lanes;
        if (mine) learn(w, mine, p.clock);
        p.lanes &= ~lanes, done |= !p.lanes;
    }
    if (done)
        pending.erase(std::remove_if(pending.begin(), pending.end(), [](const Pending& p) { return !p.lanes; }),
                      pending.end());
}

uint64_t domain_of(const Warp& w, unsigned scope)
{
    if (scope == OF_GPU) return 0;
    return 1 + (uint64_t(w.block->unit) << 16 | (scope == OF_CLUSTER ? 0xffff : w.block->in_cluster));
}

void set_released(Warp& w, unsigned scope, uint32_t lanes, const std::shared_ptr<const Clock>& clock)
{
    auto& released = w.order->released;
    if (!released) released.reset(new Released[SCOPES][32]);
    each(lanes, [&](unsigned l) { released[scope][l] = {clock, 0}; });
}

// What fences of these lanes have covered, as other clusters see it; whether there is any.
bool add_released(const Warp& w, Clock& to, uint32_t to_unit, unsigned scope, uint32_t lanes)
{
    if (!w.order->released) return false;
    const auto& released = w.order->released[scope];
    const uint32_t unit = w.block->unit;
    bool any = false;
    while (lanes) {
        const Released& first = released[unsigned(__builtin_ctz(lanes))];
        uint32_t same = 0;
        each(lanes, [&](unsigned l) {
            same |= uint32_t(released[l].clock == first.clock && released[l].time == first.time) << l;
        });
        lanes &= ~same;
        if (!first.clock) continue;
        join_foreign(to, to_unit, *first.clock, unit);
        if (first.time) {
            Clock past;
            add_past(w, past.own, same, first.time);
            join_foreign(to, to_unit, past, unit);
        }
        any = true;
    }
    return any;
}

// A fence of a lane covers what is ordered behind it, too: after a meeting each lane has what any of them has released.
void share_released(Warp& w, uint32_t lanes)
{
    Order& o = *w.order;
    if (!o.released) return;
    const Released* const widest = o.released[OF_BLOCK];
    const Released& first = widest[unsigned(__builtin_ctz(lanes))];
    bool differ = false;
    each(lanes, [&](unsigned l) { differ |= widest[l].clock != first.clock || widest[l].time != first.time; });
    if (!differ) return;
    for (unsigned s = 0; s < SCOPES; s++) {
        Clock all;
        if (!add_released(w, all, w.block->unit, s, lanes)) continue;
        set_released(w, s, lanes, std::make_shared<const Clock>(std::move(all)));
    }
}

std::pair<uint64_t, Clock>* location(uint64_t address, uint64_t domain, bool makes)
{
    const auto found = locations.find(address);
    if (found == locations.end() && !makes) return nullptr;
    auto& place = found == locations.end() ? locations[address] : found->second;
    const auto entry = std::find_if(place.begin(), place.end(), [&](const auto& one) { return one.first == domain; });
    if (entry != place.end()) return &*entry;
    return makes ? (place.emplace_back(domain, Clock()), &place.back()) : nullptr;
}

}  // namespace

Clock& Order::beyond_of(unsigned lane)
{
    if (!beyond[lane]) beyond[lane].reset(new Clock());
    apart |= 1u << lane;
    return *beyond[lane];
}

uint32_t reached(const Clock& clock, uint32_t own_unit, const Access& was, Reach what)
{
    const auto in = [&](const Times& times) {
        if (was.index < times.of.size() && times.of[was.index] >= was.clock) return ALL;
        uint32_t lanes = 0;
        if (!times.lanes.empty())
            each(was.lanes, [&](unsigned l) {
                const auto found = times.lanes.find(was.index * WARP + l);
                lanes |= uint32_t(found != times.lanes.end() && found->second >= was.clock) << l;
            });
        return lanes;
    };
    if (was.unit == own_unit)
        return what == Reach::Proxied ? in(clock.proxied) : in(clock.own) | (what == Reach::Read ? in(clock.reads) : 0);
    if (what == Reach::Proxied || clock.others.empty()) return 0;
    const auto of_lane = [&](unsigned l) {
        const auto found = clock.others.find(foreign(was.unit, was.index, l));
        return found != clock.others.end() && found->second >= was.clock;
    };
    if (of_lane(WARP)) return ALL;
    uint32_t lanes = 0;
    each(was.lanes, [&](unsigned l) { lanes |= uint32_t(of_lane(l)) << l; });
    return lanes;
}

void begin_order(Warp& w, unsigned index)
{
    if (!w.order) w.order.reset(new Order());
    *w.order = Order();
    w.order->index = uint16_t(index);
    w.order->known.own.of.assign(index + 1, 0);
}

void forget_releases() { locations.clear(); }

void meet(Warp& w, uint32_t lanes)
{
    if (!launch.races) return;
    Order& o = *w.order;
    const uint32_t now = o.count++;
    lanes &= w.alive;
    if (!lanes) return;
    share_released(w, lanes);
    if (are_all(w, lanes)) {
        each(o.apart & lanes, [&](unsigned l) { join(o.known, *o.beyond[l]); });
        each(o.apart, [&](unsigned l) { o.beyond[l].reset(); });
        o.apart = 0, o.met = now, o.met_at.clear();
        at_index(o.known.own.of, o.index) = now;
        o.known.own.forget(o.index);
        add_copies(w, o.known.own, lanes), o.waits_apart = 0;
        return;
    }
    if ((o.apart | o.waits_apart) & lanes) {
        Clock all;
        add_copies(w, all.own, lanes);
        each(o.apart & lanes, [&](unsigned l) { join(all, *o.beyond[l]); });
        learn(w, lanes, all);
    }
    if (o.met_at.empty()) o.met_at.resize(WARP * WARP);
    uint32_t known[WARP] = {};
    each(lanes, [&](unsigned i) {
        for (unsigned j = 0; j < WARP; j++) raise(known[j], o.met_at[i * WARP + j]);
    });
    each(lanes, [&](unsigned i) {
        for (unsigned j = 0; j < WARP; j++) raise(o.met_at[i * WARP + j], lanes >> j & 1 ? now : known[j]);
    });
}

void release_to(Warp& w, Clock& clock, uint32_t lanes)
{
    if (launch.races) add_known(w, clock, lanes, w.order->count);
}

void arrive_at(Warp& w, NamedBarrier& barrier, uint32_t lanes)
{
    if (!launch.races) return;
    for (unsigned s = 0; s < SCOPES; s++)
        barrier.any_released |= add_released(w, barrier.released[s], w.block->unit, s, lanes);
    // Those that have returned count as arrived.
    release_to(w, barrier.clock, are_all(w, lanes) ? ALL : lanes);
}

void leave_from(Warp& w, NamedBarrier& barrier, uint32_t lanes)
{
    if (!launch.races) return;
    acquire_from(w, barrier.clock, lanes), acquire_pending(w, OF_BLOCK, lanes), step(w), meet(w, lanes);
    if (!barrier.any_released) return;
    for (unsigned s = 0; s < SCOPES; s++) {
        if (!barrier.shared_released[s])
            barrier.shared_released[s] = std::make_shared<const Clock>(std::move(barrier.released[s]));
        set_released(w, s, lanes, barrier.shared_released[s]);
    }
}

void release_reads_to(Warp& w, Clock& clock, uint32_t lanes, Scope scope)
{
    if (!launch.races) return;
    Clock all;
    add_known(w, all, lanes, w.order->count);
    join(clock.reads, all.own), join(clock.reads, all.reads), clock.any = true;
    add_released(w, clock, w.block->unit, scope, lanes);
}

void acquire_from(Warp& w, const Clock& clock, uint32_t lanes)
{
    if (launch.races && clock.any) learn(w, lanes, clock);
}

void step(Warp& w)
{
    if (launch.races) w.order->count++;
}

void acquire_pending(Warp& w, Scope widest, uint32_t lanes)
{
    if (!launch.races) return;
    for (unsigned s = 0; s <= widest; s++) learn_pending(w, w.order->pending[s], lanes);
}

void acquire_ticket(Warp& w, uint32_t lanes)
{
    if (launch.races) learn_pending(w, w.order->ticket, lanes);
}

void fence(Warp& w, Scope scope, uint32_t lanes)
{
    if (!launch.races) return;
    acquire_pending(w, scope, lanes);
    Order& o = *w.order;
    if (!o.released) o.released.reset(new Released[SCOPES][32]);
    const auto shared = std::make_shared<const Clock>(o.known);
    each(lanes, [&](unsigned l) {
        std::shared_ptr<const Clock> clock = shared;
        if ((o.apart | o.waits_apart) >> l & 1) {
            Clock mine = o.known;
            if (o.apart >> l & 1) join(mine, *o.beyond[l]);
            add_copies(w, mine.own, 1u << l);
            clock = std::make_shared<const Clock>(std::move(mine));
        }
        for (unsigned s = 0; s <= scope; s++) o.released[s][l] = {clock, o.count};
    });
    o.count++;
}

bool publishes(const Warp& w) { return w.order->released || !locations.empty(); }

void publish(Warp& w, uint32_t lanes, uint64_t address, unsigned strong, bool reads, bool writes)
{
    if (!launch.races || !strong) return;
    Order& o = *w.order;
    const uint32_t unit = w.block->unit;
    if (writes && !reads)  // what it overwrites releases nothing any more
        if (const auto found = locations.find(address); found != locations.end()) found->second.clear();
    for (unsigned s = 0; s < strong; s++) {
        const uint64_t domain = domain_of(w, s);
        if (writes) {
            Clock released;
            if (add_released(w, released, NO_UNIT, s, lanes)) join(location(address, domain, true)->second, released);
        }
        if (!reads) continue;
        const auto* const place = location(address, domain, false);
        if (!place || !place->second.any) continue;
        remember_pending(o.pending[s], lanes, place->second, unit);
        if (writes) remember_pending(o.ticket, lanes, place->second, unit);
    }
}

void fence_proxy(Warp& w, uint32_t lanes)
{
    if (!launch.races) return;
    Order& o = *w.order;
    if (are_all(w, lanes)) {
        join(o.known.proxied, o.known.own);
        add_past(w, o.known.proxied, lanes, o.count), add_copies(w, o.known.proxied, lanes);
    } else
        each(lanes, [&](unsigned l) {
            Clock& mine = o.beyond_of(l);
            join(mine.proxied, o.known.own), join(mine.proxied, mine.own);
            add_past(w, mine.proxied, 1u << l, o.count), add_copies(w, mine.proxied, 1u << l);
        });
    o.count++;
}

// ---- asynchronous work ----------------------------------------------------------------------------------------------

unsigned index_of(const Warp& w, Agent agent) { return w.order->index + all_warps(*w.block) * (1 + unsigned(agent)); }

void close_group_of(Warp& w, Agent agent, uint32_t lanes)
{
    if (launch.races) each(lanes, [&](unsigned l) { w.order->group[unsigned(agent)][l]++; });
}

void wait_for_group_of(Warp& w, Agent agent, unsigned left, uint32_t lanes)
{
    if (!launch.races) return;
    Order& o = *w.order;
    const auto& closed = o.group[unsigned(agent)];
    if (agent != Agent::Product)
        return each(lanes, [&](unsigned l) {
            if (closed[l] <= left) return;
            raise(o.waited[unsigned(agent)][l], closed[l] - left), o.waits_apart |= 1u << l;
        });
    if (closed[0] <= left) return;
    Clock done;
    at_index(done.own.of, index_of(w, agent)) = closed[0] - left;
    learn(w, lanes, done);
}

void release_copies_to(Warp& w, Clock& clock, uint32_t lanes)  // those begun so far
{
    if (!launch.races) return;
    close_group_of(w, Agent::Copy, lanes);
    add_groups(w, clock.own, Agent::Copy, are_all(w, lanes) ? first_lanes(w) : lanes, w.order->group);
    clock.any = true;
}

void complete_phase(BytesBarrier& b)
{
    if (!launch.races) return;
    join(b.complete_clock, b.collecting);
    b.collecting = Clock();
    at_index(b.complete_clock.own.of, b.agent) = b.phase;
}

void wait_for_launch_ahead(Warp& w, uint32_t lanes)
{
    if (!launch.races) return;
    Clock waited;
    waited.waited = true;
    learn(w, lanes, waited);
}

}  // namespace rung_machine
