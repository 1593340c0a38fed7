// Simulates the recorded warps on one SM, or on those of a cluster: in each clock each of four sub-partitions issues
// one instruction of a warp whose stall has passed, whose dependence counters are 0 and whose unit is free.
#include "timing.h"

#include <math.h>

#include <map>

namespace rung_machine {
namespace {

constexpr unsigned PARTITIONS = 4, UNIFORM_PIPE = PIPES, COUNTERS = 6, GROUPS = 3;
constexpr unsigned MOST_QUEUED = 32;
constexpr double NEVER = 1e300;

// What issuing an instruction takes, decoded once.
struct Issue
{
    Control control;
    Pipe pipe;
    unsigned unit;         // its pipe, or that of the uniform datapath
    double occupied;       // clocks of the unit
    double latency;        // until its dependence counter is lowered, where it touches no memory
    double product;        // of tensor cores: clocks that the MMA takes
    double product_bytes;  // that a sub-partition's share of it reads from shared memory; 0: a warp's
    double waits_itself;   // of a fence
    double math_share;     // of the wait for its unit, what the unit itself and not other warps' instructions cause
    uint32_t target;       // of a branch; 0: none
    Stall raises, then;    // why others wait for its result, and its warp for what follows
    bool fills_path;       // takes a pass of the data path though it touches no memory: a shuffle
    double shared_pass;    // of the data path, for each of an access to shared memory
    bool in_global, copies, atomic;

    Issue(const Op& op, const Constants& c)
        : control(op.control),
          pipe(op.opcode->pipe),
          unit(op.uniform ? UNIFORM_PIPE : unsigned(pipe)),
          occupied(pipe == Pipe::TENSOR ? 1 : std::max(1.0, op.opcode->interval * c.occupied[unsigned(pipe)])),
          latency(c.latency[unsigned(pipe)]),
          product(op.opcode->width == Width::GROUP ? op.products : op.products * c.product_interval / 4),
          // Columns, of which a clock of a group's product takes two, have 32 bytes of depth, as its 64 rows have.
          product_bytes(op.opcode->width != Width::GROUP
                            ? 0
                            : (op.products * 2 + (op.s[0].kind == Kind::Memory ? 64 : 0)) * 32.0 / PARTITIONS),
          waits_itself(op.way != Way::FENCE ? 0
                       : op.has("CTA")      ? c.barrier_latency
                                            : c.fence_latency),
          math_share(pipe == Pipe::LSU      ? 0
                     : pipe == Pipe::TENSOR ? 1
                                            : 1 - 1 / std::max<double>(1, op.opcode->interval)),
          target(pipe == Pipe::CBU ? op.target : 0),
          raises(pipe == Pipe::LSU || pipe == Pipe::XU || pipe == Pipe::ADU ? SHORT_SCOREBOARD : LONG_SCOREBOARD),
          then(op.way == Way::FENCE ? MEMBAR_STALL : BRANCH),
          fills_path(pipe == Pipe::LSU && op.opcode->interval > 1),
          shared_pass(op.way != Way::ATOMIC             ? 1
                      : op.has("CAS") || op.has("CAST") ? c.shared_swap
                                                        : c.shared_atomic),
          in_global(op.space == Space::GLOBAL),
          copies(op.copies),
          atomic(op.way == Way::ATOMIC)
    {
    }
    bool multiplies() const { return pipe == Pipe::TENSOR && product > 0; }
};

struct SimulatedWarp;
struct SimulatedBlock
{
    struct Named
    {
        unsigned arrived = 0;
        std::vector<SimulatedWarp*> waiting;
    };
    Named named[16];
    unsigned alive = 0;
    uint64_t cluster = 0;
    uint32_t copy = 0;
    bool first_wave = false;
    double began = 0;
};

struct SimulatedWarp
{
    const Stream* stream;
    SimulatedBlock* block;
    unsigned sm, partition;
    size_t next = 0, event = 0;
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
    std::vector<std::pair<SimulatedWarp*, uint32_t>> waiting;
};

struct SubPartition
{
    std::vector<SimulatedWarp*> warps;
    SimulatedWarp* last = nullptr;
    double free[PIPES + 1] = {}, tensor = 0, at = 0;
    double left[MOST_QUEUED] = {};  // when the last instructions have gone from the queue to the data path
    unsigned queued = 0;
};

class Simulation
{
public:
    Simulation(const Program& p, const Constants& constants, uint32_t cluster, double used, double active_)
        : c(constants), active(active_), arrivals(cluster, 0.0), constants_free(cluster, 0.0)
    {
        for (const Op& op : p.ops) issues.emplace_back(op, constants);
        for (uint32_t i = 0; i < cluster; i++)
            memories.emplace_back(c, used, active_), partitions.emplace_back(PARTITIONS);
        made.stalls.resize(p.ops.size());
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
            for (auto& of : partitions)
                for (SubPartition& q : of) now = std::min(now, q.at);
            if (now >= NEVER) return false;
            for (unsigned m = 0; m < partitions.size(); m++)
                for (SubPartition& q : partitions[m])
                    if (q.at <= now) issue_of(m, q, now);
        }
        return true;
    }

    Simulated made;

private:
    const Constants& c;
    std::vector<Issue> issues;  // by instruction
    std::vector<Memories> memories;
    std::vector<std::vector<SubPartition>> partitions;
    std::vector<std::unique_ptr<SimulatedWarp>> runners;
    std::vector<std::unique_ptr<SimulatedBlock>> blocks;
    std::map<std::pair<uint64_t, uint32_t>, Phases> barriers;
    const std::vector<std::vector<std::vector<const Stream*>>>* all = nullptr;
    uint64_t wanted = 0, begun = 0, running = 0;
    double active, dispatched = 0;
    std::vector<double> arrivals,  // when each multiprocessor takes another arrival at a barrier
        constants_free;            // when its cache of indexed constants takes another address
    size_t first_sample = 0;
    std::unordered_map<uint64_t, unsigned> of_cluster;  // blocks alive

    void begin(double at, bool first_wave)
    {
        at = std::max(at, dispatched), dispatched = at + c.block_interval * active;
        const auto& sample = (*all)[(first_sample + begun) % all->size()];
        for (unsigned rank = 0; rank < sample.size(); rank++) {
            blocks.emplace_back(new SimulatedBlock());
            SimulatedBlock& b = *blocks.back();
            b.alive = unsigned(sample[rank].size()), b.cluster = begun, b.copy = uint32_t(begun / all->size()),
            b.first_wave = first_wave, b.began = at;
            for (const Stream* s : sample[rank]) {
                runners.emplace_back(new SimulatedWarp());
                SimulatedWarp& w = *runners.back();
                w.stream = s, w.block = &b, w.sm = rank,
                w.partition = unsigned((s->rank + begun * sample[rank].size()) % PARTITIONS);
                w.at = w.stalled = w.last = at + (first_wave ? c.first_start : c.block_start);
                SubPartition& q = partitions[rank][w.partition];
                q.warps.push_back(&w), q.at = std::min(q.at, w.at);
                if (s->code.empty()) w.done = true;
            }
        }
        of_cluster[begun] = unsigned(sample.size());
        begun++, running++;
    }

    void wake(SimulatedWarp& w, double at)
    {
        w.blocked = false, w.at = std::max(w.at, at);
        SubPartition& q = partitions[w.sm][w.partition];
        q.at = std::min(q.at, w.at);
    }

    void issue_of(unsigned m, SubPartition& q, double now)
    {
        SimulatedWarp* best = nullptr;
        double next = NEVER;
        for (SimulatedWarp* w : q.warps) {
            if (w->blocked) continue;
            if (w->at > now) {
                next = std::min(next, w->at);
                continue;
            }
            const double free = unit_free(q, issues[w->stream->code[w->next] & Stream::NUMBER]);
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

    double unit_free(const SubPartition& q, const Issue& op) const
    { return op.pipe == Pipe::LSU ? std::max(q.free[op.unit], queue_free(q)) : q.free[op.unit]; }

    double queue_free(const SubPartition& q) const
    { return q.left[(q.queued + MOST_QUEUED - unsigned(c.queue)) % MOST_QUEUED]; }

    // What becomes of an instruction that is issued.
    struct Outcome
    {
        double ready, done, taken;  // its warp may go on; its result is there; its operands have been read
        Stall raises, then;         // why others wait for the result, and its warp for what follows
        bool blocked = false;       // until others wake the warp
    };

    void issue(unsigned m, SubPartition& q, SimulatedWarp& w, double now)
    {
        const uint32_t word = w.stream->code[w.next++], number = word & Stream::NUMBER;
        const Issue& op = issues[number];
        account(q, w, op, number, now);
        made.issued++;
        const bool active = word & Stream::ACTIVE;
        q.last = &w, w.last = now;
        q.free[op.unit] = now + op.occupied;
        const double stalled = now + std::max(1u, op.control.stall);
        Outcome out = {stalled + op.waits_itself, now + op.latency, now + c.operands_read, op.raises, op.then};
        if (op.multiplies() && active) multiply(m, q, w, op, now, out);
        if (op.target && w.next < w.stream->code.size() && (w.stream->code[w.next] & Stream::NUMBER) == op.target)
            out.ready += c.branch;
        if (op.fills_path && !(word & Stream::ACTS) && active) memories[m].path(now + c.operands_read, 1);
        if (word & Stream::ACTS)
            for (bool last = false; !last;) {
                const auto& [event, is_last] = w.stream->events[w.event++];
                last = is_last;
                std::visit([&](const auto& one) { happen(one, At{m, q, w, op, now}, out); }, event);
            }
        if (op.pipe == Pipe::LSU) q.left[q.queued++ % MOST_QUEUED] = memories[m].path_free;
        if (op.control.write < COUNTERS) raise(w, op.control.write, out.done, out.raises);
        if (op.control.read < COUNTERS) raise(w, op.control.read, out.taken, SHORT_SCOREBOARD);
        w.stalled = stalled;
        if (!out.blocked) w.waits_for = out.then;
        if (w.next == w.stream->code.size()) return end(q, w, now);
        w.at = out.ready;
        const unsigned needs = issues[w.stream->code[w.next] & Stream::NUMBER].control.waits;
        for (unsigned i = 0; i < COUNTERS; i++)
            if (needs >> i & 1 && w.counter[i] > w.at) w.at = w.counter[i], w.waits_for = w.raised[i];
    }

    void multiply(unsigned m, SubPartition& q, SimulatedWarp& w, const Issue& op, double now, Outcome& out)
    {
        const double begins = std::max(q.tensor, now);
        double& open = w.open[unsigned(Agent::Product)];
        q.tensor = begins + op.product;
        if (op.product_bytes) {  // operands come out of shared memory; the warp goes on
            const double path = memories[m].path(begins, op.product_bytes / c.path_bytes);
            out.done = out.taken = std::max(q.tensor, path) + c.group_tail;
            open = std::max(open, out.done);
            q.free[op.unit] = std::max(q.free[op.unit], q.tensor - 4 * op.product);
        } else {
            q.free[op.unit] = q.tensor;
            open = out.done = begins + op.latency;
        }
    }

    static void raise(SimulatedWarp& w, unsigned counter, double until, Stall by)
    {
        if (until >= w.counter[counter]) w.counter[counter] = until, w.raised[counter] = by;
    }

    struct At  // where something happens
    {
        unsigned m;
        SubPartition& q;
        SimulatedWarp& w;
        const Issue& op;
        double now;
    };

    void happen(const SharedAccess& of, const At& at, Outcome& out)
    {
        Memories& memory = memories[at.m];
        const double there = memory.access(at.now + c.to_memory, of.passes * at.op.shared_pass);
        if (!at.op.copies) out.done = std::max(out.done, at.op.atomic ? there + c.atomic_latency / 4 : there);
        out.taken = std::max(out.taken, memory.path_free + c.shared_read);
    }

    void happen(const ConstantAccess& of, const At& at, Outcome& out)
    {
        const double begins = at.now + c.to_memory, more = at.op.latency - c.to_memory;
        double& free = constants_free[at.m];
        free = std::max(free, begins) + of.addresses * c.constant_address;
        out.done = std::max({out.done, free + more, begins + (of.addresses - 1) * c.constant_latency + more});
    }

    void happen(const GlobalAccess& of, const At& at, Outcome& out)
    {
        Memories& memory = memories[at.m];
        const double begins = at.now + c.to_memory;
        double& unit = at.q.free[unsigned(Pipe::LSU)];
        unit = std::max(unit, at.now + of.lines * c.line_of_partition);
        out.raises = LONG_SCOREBOARD;
        if (of.use != GlobalAccess::LOAD) {
            const bool has_result = at.op.control.write < COUNTERS;
            out.done = std::max(out.done, memory.store(begins, *at.w.stream, of, has_result));
            out.taken = std::max(out.taken, memory.path_free + c.store_read);
            return;
        }
        const SimulatedBlock& block = *at.w.block;
        const bool keeps = !(at.op.copies && of.bytes == 16);
        const double there = memory.load(begins, *at.w.stream, of, block.copy, block.first_wave, keeps);
        double& open = at.w.open[unsigned(Agent::Copy)];
        if (at.op.copies)
            open = std::max(open, there), out.taken = std::max(out.taken, at.now + c.copy_read);
        else
            out.done = std::max(out.done, there), out.taken = std::max(out.taken, at.now + c.load_read);
    }

    void happen(const BulkCopy& of, const At& at, Outcome&)
    {
        const SimulatedBlock& block = *at.w.block;
        const double there = memories[at.m].copy(at.now + c.to_memory, *at.w.stream, of, block.copy, block.first_wave);
        double& open = at.w.open[unsigned(Agent::Out)];
        if (!of.signals) {
            open = std::max(open, there);
            return;
        }
        if (!of.blocks) complete(key(at.w, of.barrier), there, 0, of.bytes);
        for (unsigned rank = 0; rank < 16; rank++)
            if (of.blocks >> rank & 1) complete(key(at.w, (of.barrier & 0xffffff) | rank << 24), there, 0, of.bytes);
    }

    void happen(const BarrierArrival& of, const At& at, Outcome& out)
    {
        SimulatedBlock::Named& named = at.w.block->named[of.number & 15];
        named.arrived++;
        const double now = arrivals[at.m] = std::max(at.now, arrivals[at.m] + c.barrier_interval);
        const unsigned all = of.threads ? of.threads / WARP : at.w.block->alive;
        if (of.waits) named.waiting.push_back(&at.w), at.w.blocked = true;
        at.w.waits_for = BARRIER_STALL;
        if (named.arrived >= all) release(named, now);
        out.blocked |= at.w.blocked;
    }

    void happen(const MbarrierUse& of, const At& at, Outcome& out)
    {
        SimulatedWarp& w = at.w;
        switch (of.what) {
        case Bytes::BEGINS: {
            Phases& b = barriers[key(w, (of.at & 0xffffff) | w.stream->in_cluster << 24)];
            b = Phases(), b.expected = of.amount, b.pending = of.amount;
            break;
        }
        case Bytes::EXPECTS: complete(key(w, of.at), at.now, 0, -int64_t(of.amount)); break;
        case Bytes::COMPLETES: {
            const double copied = at.op.copies ? w.open[unsigned(Agent::Copy)] : 0;
            complete(key(w, of.at), std::max(at.now + c.bytes_latency / 2, copied), 0, of.amount);
            break;
        }
        case Bytes::ARRIVES:
            complete(key(w, of.at), std::max(at.now, w.open[unsigned(Agent::Copy)]), of.amount, 0);
            break;
        case Bytes::WAITED: {
            Phases& b = barriers[key(w, of.at)];
            out.done = std::max(out.done, at.now + c.bytes_latency), out.then = LONG_SCOREBOARD;
            if ((b.phase & 1) != of.amount)
                out.ready = std::max(out.ready, b.complete + c.bytes_latency);
            else
                b.waiting.push_back({&w, of.amount}), w.blocked = out.blocked = true;
        }
        }
    }

    void happen(const GroupClosed& of, const At& at, Outcome&)
    {
        std::vector<double>& closed = at.w.closed[unsigned(of.of)];
        closed.push_back(std::max(closed.empty() ? 0 : closed.back(), at.w.open[unsigned(of.of)]));
    }

    void happen(const GroupAwaited& of, const At& at, Outcome& out)
    {
        const std::vector<double>& closed = at.w.closed[unsigned(of.of)];
        const bool products = of.of == Agent::Product;
        if (products && closed.empty()) out.ready = std::max(out.ready, at.w.open[unsigned(of.of)]);
        out.then = products ? GMMA_STALL : LONG_SCOREBOARD;
        if (closed.size() > of.left) out.ready = std::max(out.ready, closed[closed.size() - 1 - of.left]);
    }

    static std::pair<uint64_t, uint32_t> key(const SimulatedWarp& w, uint32_t place)
    { return {w.block->cluster, place}; }

    void complete(std::pair<uint64_t, uint32_t> of, double at, uint32_t arrivals, int64_t bytes)
    {
        Phases& b = barriers[of];
        b.pending -= arrivals, b.bytes -= bytes, b.time = std::max(b.time, at);
        if (b.pending > 0 || b.bytes || !b.expected || (!arrivals && b.pending)) return;
        b.phase++, b.pending = b.expected, b.complete = b.time;
        std::vector<std::pair<SimulatedWarp*, uint32_t>> still;
        for (const auto& [w, parity] : b.waiting)
            if ((b.phase & 1) != parity)
                w->waits_for = LONG_SCOREBOARD, wake(*w, b.complete + c.bytes_latency);
            else
                still.push_back({w, parity});
        b.waiting = still;
    }

    void release(SimulatedBlock::Named& named, double now)
    {
        named.arrived = 0;
        std::vector<SimulatedWarp*> waiting;
        waiting.swap(named.waiting);
        for (SimulatedWarp* w : waiting) wake(*w, now + c.barrier_latency);
    }

    void end(SubPartition& q, SimulatedWarp& w, double now)
    {
        w.done = true;
        q.warps.erase(std::find(q.warps.begin(), q.warps.end(), &w));
        if (q.last == &w) q.last = nullptr;
        SimulatedBlock& b = *w.block;
        if (--b.alive) {
            for (auto& named : b.named)
                if (!named.waiting.empty() && named.arrived >= b.alive) release(named, now);
            return;
        }
        made.clocks = std::max({made.clocks, now, memories[w.sm].stored});
        if (--of_cluster[b.cluster]) return;
        running--;
        barriers.erase(barriers.lower_bound({b.cluster, 0}), barriers.lower_bound({b.cluster + 1, 0}));
        if (begun < wanted) begin(now, false);
    }

    void account(const SubPartition& q, const SimulatedWarp& w, const Issue& op, uint32_t number, double now)
    {
        auto& stalls = made.stalls[number];
        const double known = std::max(w.last, std::min(w.at, now)), counted = std::min(w.stalled, known);
        stalls[SELECTED]++;
        stalls[WAITS] += std::max(0.0, counted - w.last - 1);
        stalls[w.waits_for] += std::max(0.0, known - std::max(counted, w.last + 1));
        double late = now - std::max(known, w.last + 1);
        if (late <= 0) return;
        if (op.pipe == Pipe::LSU) {
            const double full = std::min(late, std::max(0.0, queue_free(q) - std::max(known, w.last + 1)));
            stalls[op.in_global ? LG_THROTTLE : MIO_THROTTLE] += full, late -= full;
        }
        stalls[MATH_PIPE] += late * op.math_share, stalls[NOT_SELECTED] += late * (1 - op.math_share);
    }
};

// One SM's share of the grid.
Simulated simulate_share(const Program& program, const Constants& c, uint64_t blocks, uint32_t resident,
                         uint32_t cluster, double shared_bytes, double sets)
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
        if (before != ~0u && unit == before + 1 && found.size() < units) continue;  // the neighbour shows sharing only
        before = unit;
        samples.emplace_back();
        for (auto& [rank, warps] : of) samples.back().push_back(warps);
    }
    Simulated last;
    if (samples.empty()) return last;
    const double used = shared_bytes * double(std::min(each, together));
    const auto run = [&](uint64_t count, size_t first) {
        Simulation simulation(program, c, cluster, used, active);
        if (!simulation.run(samples, count, together, first)) simulation.made.clocks = -1;
        last = std::move(simulation.made);
        return last.clocks;
    };
    if (each == 1) {
        double longest = 0;
        Simulated of_longest;
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

}  // namespace

Simulated simulate(const Program& program, const Constants& c, uint64_t blocks, uint32_t resident, uint32_t cluster,
                   double shared_bytes, double sets)
{
    Simulated made = simulate_share(program, c, blocks, resident, cluster, shared_bytes, sets);
    made.atomics = atomic_queue(c, blocks);  // it is busy from the first atomic to the last
    if (made.clocks >= 0)
        made.clocks = std::max(made.clocks, c.first_start + c.second_cache_latency + made.atomics.clocks);
    return made;
}

}  // namespace rung_machine
