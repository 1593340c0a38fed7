// Plays the recorded warps on one multiprocessor, or on those of a cluster: in each clock each of four quarters issues
// one instruction of a warp whose stall has passed, whose dependence counters are 0 and whose unit is free.
#include "model.h"

#include <math.h>

#include <map>

namespace rung_machine {
namespace {

constexpr unsigned QUARTERS = 4, PIPES = 12, UNIFORM_PIPE = 11, COUNTERS = 6, GROUPS = 3;
constexpr unsigned MOST_QUEUED = 32;
constexpr double NEVER = 1e300;

struct Runner;
struct Resident  // a block
{
    struct Named
    {
        unsigned arrived = 0;
        std::vector<Runner*> waiting;
    };
    Named named[16];
    unsigned alive = 0;
    uint64_t cluster = 0;
    uint32_t copy = 0;
    bool first_wave = false;
    double began = 0;
};

struct Runner  // a warp
{
    const Stream* stream;
    Resident* block;
    unsigned multiprocessor, quarter;
    size_t next = 0, ask = 0;
    double at = 0;                 // when its next instruction may issue, but for its unit
    double stalled = 0, last = 0;  // when its stall count has passed; when it issued
    Stall waits_for = WAITS;
    double counter[COUNTERS] = {};  // when each is 0
    Stall raised[COUNTERS] = {};    // by what
    double open[GROUPS] = {};
    std::vector<double> closed[GROUPS];
    bool blocked = false, done = false;
};

struct Phases
{
    uint32_t expected = 0;
    int64_t pending = 0, bytes = 0;
    uint32_t phase = 0;
    double time = 0, complete = 0;
    std::vector<std::pair<Runner*, uint32_t>> waiting;
};

struct Quarter
{
    std::vector<Runner*> warps;
    Runner* last = nullptr;
    double free[PIPES] = {}, tensor = 0, at = 0;
    double left[MOST_QUEUED] = {};  // when the last instructions have gone from the queue to the data path
    unsigned queued = 0;
};

class Playing
{
public:
    Playing(const Program& p, const Constants& constants, uint32_t cluster, double used, double active_)
        : program(p), c(constants), active(active_), arrivals(cluster, 0.0)
    {
        for (uint32_t i = 0; i < cluster; i++) memories.emplace_back(c, used, active_), quarters.emplace_back(QUARTERS);
        played.stalls.resize(program.ops.size());
    }

    // `units` clusters of blocks, `together` at a time; false if nothing can go on.
    bool run(const std::vector<std::vector<std::vector<const Stream*>>>& samples, uint64_t units, uint64_t together,
             size_t first)
    {
        all = &samples, wanted = units, first_sample = first;
        dispatched = c.block_interval * (active - 1);  // of the multiprocessor that is the last to have a block
        for (uint64_t i = 0; i < std::min(units, together); i++) begin(0, true);
        while (running) {
            double now = NEVER;
            for (auto& of : quarters)
                for (Quarter& q : of) now = std::min(now, q.at);
            if (now >= NEVER) return false;
            for (unsigned m = 0; m < quarters.size(); m++)
                for (Quarter& q : quarters[m])
                    if (q.at <= now) issue_of(m, q, now);
        }
        return true;
    }

    Played played;

private:
    const Program& program;
    const Constants& c;
    std::vector<Memories> memories;
    std::vector<std::vector<Quarter>> quarters;
    std::vector<std::unique_ptr<Runner>> runners;
    std::vector<std::unique_ptr<Resident>> blocks;
    std::map<std::pair<uint64_t, uint32_t>, Phases> barriers;
    const std::vector<std::vector<std::vector<const Stream*>>>* all = nullptr;
    uint64_t wanted = 0, begun = 0, running = 0;
    double active, dispatched = 0;
    std::vector<double> arrivals;  // when each multiprocessor takes another arrival at a barrier
    size_t first_sample = 0;
    std::unordered_map<uint64_t, unsigned> of_cluster;  // blocks alive

    void begin(double at, bool first_wave)
    {
        at = std::max(at, dispatched), dispatched = at + c.block_interval * active;
        const auto& sample = (*all)[(first_sample + begun) % all->size()];
        for (unsigned rank = 0; rank < sample.size(); rank++) {
            blocks.emplace_back(new Resident());
            Resident& b = *blocks.back();
            b.alive = unsigned(sample[rank].size()), b.cluster = begun, b.copy = uint32_t(begun / all->size()),
            b.first_wave = first_wave, b.began = at;
            for (const Stream* s : sample[rank]) {
                runners.emplace_back(new Runner());
                Runner& w = *runners.back();
                w.stream = s, w.block = &b, w.multiprocessor = rank,
                w.quarter = unsigned((s->rank + begun * sample[rank].size()) % QUARTERS);
                w.at = w.stalled = w.last = at + (first_wave ? c.first_start : c.block_start);
                Quarter& q = quarters[rank][w.quarter];
                q.warps.push_back(&w), q.at = std::min(q.at, w.at);
                if (s->code.empty()) w.done = true;
            }
        }
        of_cluster[begun] = unsigned(sample.size());
        begun++, running++;
    }

    void wake(Runner& w, double at)
    {
        w.blocked = false, w.at = std::max(w.at, at);
        Quarter& q = quarters[w.multiprocessor][w.quarter];
        q.at = std::min(q.at, w.at);
    }

    void issue_of(unsigned m, Quarter& q, double now)
    {
        Runner* best = nullptr;
        double next = NEVER;
        for (Runner* w : q.warps) {
            if (w->blocked) continue;
            if (w->at > now) {
                next = std::min(next, w->at);
                continue;
            }
            const Op& op = program.ops[w->stream->code[w->next] & Stream::NUMBER];
            const double free = unit_free(q, op);
            if (free > now) {
                next = std::min(next, free);
                continue;
            }
            if (!best || w == q.last || (best != q.last && w->last < best->last)) best = w;
        }
        if (!best) {
            q.at = next;
            return;
        }
        q.at = now + 1;
        issue(m, q, *best, now);
    }

    double unit_free(const Quarter& q, const Op& op) const
    {
        const unsigned pipe = op.uniform ? UNIFORM_PIPE : unsigned(op.opcode->pipe);
        return op.opcode->pipe == Pipe::LSU ? std::max(q.free[pipe], queue_free(q)) : q.free[pipe];
    }

    double queue_free(const Quarter& q) const
    { return q.left[(q.queued + MOST_QUEUED - unsigned(c.queue)) % MOST_QUEUED]; }

    void issue(unsigned m, Quarter& q, Runner& w, double now)
    {
        const uint32_t word = w.stream->code[w.next++];
        const Op& op = program.ops[word & Stream::NUMBER];
        const Control control(op.control);
        account(q, w, op, now);
        played.issued++;
        const unsigned pipe = op.uniform ? UNIFORM_PIPE : unsigned(op.opcode->pipe);
        const bool active = word & Stream::ACTIVE;
        q.last = &w, w.last = now;
        q.free[pipe] = now + (op.opcode->pipe == Pipe::TENSOR
                                  ? 1
                                  : std::max(1.0, op.opcode->interval * c.occupied[unsigned(op.opcode->pipe)]));
        double ready = now + std::max(1u, control.stall), done = now + c.latency[unsigned(op.opcode->pipe)],
               taken = now + 6;
        Stall kind = op.opcode->pipe == Pipe::LSU || op.opcode->pipe == Pipe::XU || op.opcode->pipe == Pipe::ADU
                         ? SHORT_SCOREBOARD
                         : LONG_SCOREBOARD;
        if (op.opcode->pipe == Pipe::TENSOR && active && op.products) {
            const bool group = op.opcode->width == Width::GROUP;
            const double begins = std::max(q.tensor, now),
                         takes = group ? op.products : op.products * c.product_interval / 4;
            q.tensor = begins + takes;
            if (group) {  // operands come out of shared memory; the warp goes on
                const double passes =
                    (op.products * 2 * 32 + (op.s[0].kind == Kind::Memory ? 64 * 32 : 0)) / 128.0 / QUARTERS;
                const double path = memories[m].path(begins, passes);
                done = std::max(q.tensor, path) + c.group_tail;
                w.open[unsigned(Agent::Product)] = std::max(w.open[unsigned(Agent::Product)], done);
                q.free[pipe] = std::max(q.free[pipe], q.tensor - 4 * takes), taken = done;
            } else {
                q.free[pipe] = q.tensor, done = q.tensor - takes + c.latency[unsigned(Pipe::TENSOR)];
                w.open[unsigned(Agent::Product)] = done;
            }
        }
        if (op.opcode->pipe == Pipe::CBU && op.target && w.next < w.stream->code.size() &&
            (w.stream->code[w.next] & Stream::NUMBER) == op.target)
            ready += c.branch;
        if (op.way == Way::FENCE) ready += op.has("CTA") ? c.barrier_latency : c.fence_latency;
        if (op.opcode->pipe == Pipe::LSU && !(word & Stream::ASKS) && active && op.opcode->interval > 1)
            memories[m].path(now + 6, 1);
        bool waits = false;
        Stall reason = op.way == Way::FENCE ? MEMBAR_STALL : BRANCH;
        if (word & Stream::ASKS)
            for (bool last = false; !last;) {
                const Ask& ask = w.stream->events[w.ask++];
                last = ask.last;
                waits |= answer(m, q, w, op, ask, now, ready, done, taken, kind, reason);
            }
        if (op.opcode->pipe == Pipe::LSU) q.left[q.queued++ % MOST_QUEUED] = memories[m].path_free;
        if (control.write < COUNTERS) raise(w, control.write, done, kind);
        if (control.read < COUNTERS) raise(w, control.read, taken, SHORT_SCOREBOARD);
        w.stalled = now + std::max(1u, control.stall);
        if (!waits) w.waits_for = reason;
        if (w.next == w.stream->code.size()) return end(q, w, now);
        w.at = ready;
        const unsigned needs = Control(program.ops[w.stream->code[w.next] & Stream::NUMBER].control).waits;
        for (unsigned i = 0; i < COUNTERS; i++)
            if (needs >> i & 1 && w.counter[i] > w.at) w.at = w.counter[i], w.waits_for = w.raised[i];
    }

    static void raise(Runner& w, unsigned counter, double until, Stall by)
    {
        if (until >= w.counter[counter]) w.counter[counter] = until, w.raised[counter] = by;
    }

    // What an instruction asks of memory or of others; whether its warp waits for others.
    bool answer(unsigned m, Quarter& q, Runner& w, const Op& op, const Ask& ask, double now, double& ready,
                double& done, double& taken, Stall& kind, Stall& reason)
    {
        Memories& memory = memories[m];
        const bool copies = op.copies;
        double& open = w.open[unsigned(Agent::Copy)];
        switch (ask.asked) {
        case Asked::SHARED: {
            const double there = memory.shared(now + 8, ask);
            if (!copies) done = std::max(done, op.way == Way::ATOMIC ? there + c.atomic_latency / 4 : there);
            taken = std::max(taken, memory.path_free + 2);
            break;
        }
        case Asked::GLOBAL: {
            const bool atomic = op.way == Way::ATOMIC;
            kind = LONG_SCOREBOARD;
            q.free[unsigned(Pipe::LSU)] = std::max(q.free[unsigned(Pipe::LSU)], now + ask.passes * c.line_of_quarter);
            if (ask.store || atomic) {
                const double there = memory.store(now + 8, *w.stream, ask, atomic);
                done = std::max(done, there), taken = std::max(taken, memory.path_free + 4);
            } else {
                const double there = memory.load(now + 8, *w.stream, ask, w.block->copy, w.block->first_wave,
                                                 !(copies && ask.bytes == 16));
                if (copies)
                    open = std::max(open, there), taken = std::max(taken, now + 20);
                else
                    done = std::max(done, there), taken = std::max(taken, now + 12);
            }
            break;
        }
        case Asked::COPY: {
            const double there = memory.bulk(now + 8, *w.stream, ask, w.block->copy, w.block->first_wave);
            if (!ask.place) {
                double& out = w.open[unsigned(Agent::Out)];
                out = std::max(out, there);
                break;
            }
            const uint32_t barrier = ask.place - 1;
            if (!ask.passes)
                complete(key(w, barrier), there, 0, ask.amount);
            else
                for (unsigned rank = 0; rank < 16; rank++)
                    if (ask.passes >> rank & 1)
                        complete(key(w, (barrier & 0xffffff) | rank << 24), there, 0, ask.amount);
            break;
        }
        case Asked::BARRIER: {
            Resident::Named& named = w.block->named[ask.place & 15];
            named.arrived++;
            now = arrivals[m] = std::max(now, arrivals[m] + c.barrier_interval);
            const unsigned all = ask.count ? ask.count / WARP : w.block->alive;
            if (!ask.store) named.waiting.push_back(&w), w.blocked = true;
            if (named.arrived >= all) release(named, now);
            w.waits_for = BARRIER_STALL;
            return w.blocked;
        }
        case Asked::BYTES_BEGIN: {
            Phases& b = barriers[key(w, (ask.place & 0xffffff) | w.stream->in_cluster << 24)];
            b = Phases(), b.expected = ask.amount, b.pending = ask.amount;
            break;
        }
        case Asked::BYTES_EXPECT: complete(key(w, ask.place), now, 0, -int64_t(ask.amount)); break;
        case Asked::BYTES_COMPLETE:
            complete(key(w, ask.place), std::max(now + c.bytes_latency / 2, copies ? open : 0), 0, ask.amount);
            break;
        case Asked::BYTES_ARRIVE:
            complete(key(w, ask.place), std::max(now, w.open[0] > now ? w.open[0] : now), ask.amount, 0);
            break;
        case Asked::BYTES_WAIT: {
            Phases& b = barriers[key(w, ask.place)];
            done = std::max(done, now + c.bytes_latency), reason = LONG_SCOREBOARD;
            if ((b.phase & 1) != ask.amount)
                ready = std::max(ready, b.complete + c.bytes_latency);
            else
                b.waiting.push_back({&w, ask.amount}), w.blocked = true;
            return w.blocked;
        }
        case Asked::CLOSE: {
            std::vector<double>& closed = w.closed[ask.place];
            closed.push_back(std::max(closed.empty() ? 0 : closed.back(), w.open[ask.place]));
            break;
        }
        case Asked::WAIT: {
            const std::vector<double>& closed = w.closed[ask.place];
            if (ask.place == unsigned(Agent::Product) && closed.empty()) ready = std::max(ready, w.open[ask.place]);
            reason = ask.place == unsigned(Agent::Product) ? GMMA_STALL : LONG_SCOREBOARD;
            if (closed.size() > ask.amount) ready = std::max(ready, closed[closed.size() - 1 - ask.amount]);
            break;
        }
        }
        return false;
    }

    static std::pair<uint64_t, uint32_t> key(const Runner& w, uint32_t place) { return {w.block->cluster, place}; }

    void complete(std::pair<uint64_t, uint32_t> of, double at, uint32_t arrivals, int64_t bytes)
    {
        Phases& b = barriers[of];
        b.pending -= arrivals, b.bytes -= bytes, b.time = std::max(b.time, at);
        if (b.pending > 0 || b.bytes || !b.expected || (!arrivals && b.pending)) return;
        b.phase++, b.pending = b.expected, b.complete = b.time;
        std::vector<std::pair<Runner*, uint32_t>> still;
        for (const auto& [w, parity] : b.waiting)
            if ((b.phase & 1) != parity)
                w->waits_for = LONG_SCOREBOARD, wake(*w, b.complete + c.bytes_latency);
            else
                still.push_back({w, parity});
        b.waiting = still;
    }

    void release(Resident::Named& named, double now)
    {
        named.arrived = 0;
        std::vector<Runner*> waiting;
        waiting.swap(named.waiting);
        for (Runner* w : waiting) wake(*w, now + c.barrier_latency);
    }

    void end(Quarter& q, Runner& w, double now)
    {
        w.done = true;
        q.warps.erase(std::find(q.warps.begin(), q.warps.end(), &w));
        if (q.last == &w) q.last = nullptr;
        Resident& b = *w.block;
        if (--b.alive) {
            for (auto& named : b.named)
                if (!named.waiting.empty() && named.arrived >= b.alive) release(named, now);
            return;
        }
        played.clocks = std::max({played.clocks, now, memories[w.multiprocessor].stored});
        if (--of_cluster[b.cluster]) return;
        running--;
        barriers.erase(barriers.lower_bound({b.cluster, 0}), barriers.lower_bound({b.cluster + 1, 0}));
        if (begun < wanted) begin(now, false);
    }

    void account(const Quarter& q, const Runner& w, const Op& op, double now)
    {
        auto& stalls = played.stalls[op.number];
        const double known = std::max(w.last, std::min(w.at, now)), counted = std::min(w.stalled, known);
        stalls[SELECTED]++;
        stalls[WAITS] += std::max(0.0, counted - w.last - 1);
        stalls[w.waits_for] += std::max(0.0, known - std::max(counted, w.last + 1));
        double late = now - std::max(known, w.last + 1);
        if (late <= 0) return;
        const Pipe pipe = op.opcode->pipe;
        if (pipe == Pipe::LSU) {
            const double full = std::min(late, std::max(0.0, queue_free(q) - std::max(known, w.last + 1)));
            stalls[op.space == Space::GLOBAL ? LG_THROTTLE : MIO_THROTTLE] += full, late -= full;
        }
        const double busy =
            pipe == Pipe::LSU ? 0
            : pipe == Pipe::TENSOR
                ? 1
                : 1 - 1 / std::max<double>(1, op.opcode->interval);  // as if other warps kept the unit so
        stalls[MATH_PIPE] += late * busy, stalls[NOT_SELECTED] += late * (1 - busy);
    }
};

}  // namespace

Played play(const Program& program, const Constants& c, uint64_t blocks, uint32_t resident, uint32_t cluster,
            double shared_bytes, double sets)
{
    const uint64_t units = blocks / cluster;
    const double places = std::max(1.0, floor(c.multiprocessors / cluster)),
                 active = std::min(double(units), places) * cluster;
    const uint64_t each = uint64_t(ceil(double(units) / places)), together = std::max(1u, resident);
    measure_sharing(c, blocks, active * double(std::min(each, together)), sets);
    std::map<uint32_t, std::map<uint32_t, std::vector<const Stream*>>> found;
    for (const auto& s : streams) found[s->unit][s->in_cluster].push_back(s.get());
    std::vector<std::vector<std::vector<const Stream*>>> samples;
    uint32_t before = ~0u;
    for (auto& [unit, of] : found) {
        if (before != ~0u && unit == before + 1 && found.size() < units)
            continue;  // the neighbour tells of sharing only
        before = unit;
        samples.emplace_back();
        for (auto& [rank, warps] : of) samples.back().push_back(warps);
    }
    Played last;
    last.clocks = -1;
    if (samples.empty()) return last;
    const double used = shared_bytes * double(std::min(each, together));
    const auto run = [&](uint64_t count, size_t first) {
        Playing playing(program, c, cluster, used, active);
        if (!playing.run(samples, count, together, first)) playing.played.clocks = -1;
        last = std::move(playing.played);
        return last.clocks;
    };
    if (each == 1) {
        double longest = 0;
        Played of_longest;
        for (size_t i = 0; i < std::min<size_t>(samples.size(), 4); i++) {
            const double clocks = run(1, i * samples.size() / std::min<size_t>(samples.size(), 4));
            if (clocks < 0) return last;
            if (clocks > longest) longest = clocks, of_longest = last;
        }
        return of_longest;
    }
    if (each <= 3 * together || each <= 4) return run(each, 0), last;
    const double two = run(2 * together, 0), three = run(3 * together, 0);
    if (two < 0 || three < 0) return last;
    last.clocks = three + (double(units) / places - 3.0 * double(together)) * (three - two) / double(together);
    return last;
}

}  // namespace rung_machine
