#include "entry.h"
#include "timing.h"

#include "machine.h"

#include <signal.h>
#include <stdio.h>

#include <algorithm>

namespace rung_machine {

Program* decoded(const char* text);
void begin_async();
void begin_driver();
void begin_numbers();
void end_numbers();
uint64_t badness(const Cost& cost);
extern const Warp* executing_warp;
struct Traced
{ uint64_t instruction, block, warp, lanes, bytes, place, at[WARP]; };
struct Happened
{ uint32_t event, warp, amount, serial; };
extern std::vector<Traced> traced;
extern std::vector<Happened> happened;
extern size_t trace_room;

namespace {

// Places in constant bank 0: before Blackwell, and since.
struct Places
{
    uint32_t block_size, grid_size, local_base, stack, grid_barrier_high, grid_barrier_low, multiprocessors,
        has_clusters, cluster_size, cluster_reciprocal, grid_of_clusters, cluster_blocks, parameters, reserved_shared;
};
constexpr Places BEFORE = {0, 0xc, 0x20, 0x28, 0x44, 0x48, 0x10c, 0x140, 0x144, 0x150, 0x15c, 0x188, 0x198, 0x6c};
constexpr Places SINCE = {0x360, 0x370, 0x2f8, 0x37c, 0x254, 0x258, 0x2d0,
                          0x36c, 0x2a0, 0x2b0, 0x2c0, 0x2cc, 0x348, 0x27c};
constexpr uint32_t OF_GROUPS = 288;  // bytes of the reserved shared memory that cooperative groups may use
uint32_t grid_barrier[16];           // cooperative groups'

void touched_nothing(int, siginfo_t* info, void*)
{
    Fault fault(RUNG_BOUNDS);
    fault.space = RUNG_GLOBAL_SPACE, fault.address = uint64_t(info->si_addr);
    if (executing && executing_warp)
        fault.at = where(*executing_warp, *executing, WARP), fault.writes = executing->store;
    throw fault;
}

void prepare(const rung_machine_launch& l)
{
    static_cast<rung_machine_launch&>(launch) = l;
    launch.regions.clear(), launch.inputs = false;
    for (uint32_t i = 0; i < l.region_count; i++) launch.inputs |= l.regions[i].flags & INPUT_REGION;
    for (uint32_t i = 0; i < l.region_count; i++)
        launch.regions.push_back({l.regions[i].from, l.regions[i].to, l.regions[i].flags});
    launch.uncounted = l.uncounted && !l.trace_room && !l.sampled_count;
    for (unsigned i = 0; i < 8; i++) {
        const uint8_t* const bytes = static_cast<const uint8_t*>(l.bank[i]);
        launch.bank[i].assign(bytes, bytes + l.bank_bytes[i]);
    }
    std::vector<uint8_t>& first = launch.bank[0];
    first.resize(std::max<size_t>(first.size(), l.parameters + 8));
    const Places& places = l.parameters >= 0x380 ? SINCE : BEFORE;
    const auto put = [&](uint32_t at, auto value) {  // before sm_90 parameters lie where later clusters are described
        if (!l.parameters || at < l.parameters) memcpy(&first[at], &value, sizeof value);
    };
    put(places.local_base, LOCAL_WINDOW), put(places.stack, l.local_bytes),
        put(places.parameters, uint64_t(first.data()) + l.parameters);
    const uint32_t blocks = l.cluster[0] * l.cluster[1] * l.cluster[2];
    put(places.has_clusters, uint32_t(blocks > 1)), put(places.cluster_blocks, blocks),
        put(places.multiprocessors, l.multiprocessors);
    for (uint32_t axis = 0; axis < 3; axis++) {
        put(places.block_size + 4 * axis, l.block[axis]), put(places.grid_size + 4 * axis, l.grid[axis]),
            put(places.cluster_size + 4 * axis, l.cluster[axis]);
        put(places.cluster_reciprocal + 4 * axis, 1.0f / float(l.cluster[axis])),
            put(places.grid_of_clusters + 4 * axis, l.grid[axis] / l.cluster[axis]);
    }
    std::fill(grid_barrier, grid_barrier + 16, 0);
    if (!launch.regions.empty()) {  // the machine's own
        for (const std::vector<uint8_t>& bank : launch.bank)
            if (!bank.empty())
                launch.regions.push_back({uint64_t(bank.data()), uint64_t(bank.data()) + bank.size(), 0});
        launch.regions.push_back({uint64_t(grid_barrier), uint64_t(grid_barrier + 16), 0});
        std::sort(launch.regions.begin(), launch.regions.end(),
                  [](const Region& a, const Region& b) { return a.from < b.from; });
    }
    const uint64_t at = launch.cooperative ? uint64_t(grid_barrier) : 0;
    put(places.grid_barrier_high, uint32_t(at >> 32)), put(places.grid_barrier_low, uint32_t(at));
    Program& program = *launch.program;
    launch.first_shared = launch.reserved_shared;
    for (const Op& op : program.ops)
        for (const Operand& o : op.every)
            if (launch.reserved_shared && o.kind == Kind::Constant && !o.index &&
                o.offset == int(places.reserved_shared))
                put(places.reserved_shared, launch.first_shared = launch.reserved_shared - OF_GROUPS);
    for (const auto& [operand, row] : program.constants)
        std::fill(*row, *row + WARP, constant_word(operand->index, uint64_t(operand->offset)));
    std::fill(program.tally.begin(), program.tally.end(), Tally());
    std::fill(program.memory.begin(), program.memory.end(), Memory());
    traced.clear(), happened.clear();
    trace_room = l.trace_room;
    begin_record(l.sampled, l.sampled_count, l.sampled_only);
    launch.unwritten = {}, launch.executed = 0;
    begin_async(), begin_driver();
    begin_races();
}

}  // namespace
}  // namespace rung_machine

using namespace rung_machine;

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

EXPORTED void* rung_machine_load(const char* text) { return decoded(text); }
EXPORTED const char* rung_machine_problem(void* program)
{
    const std::string& problem = static_cast<Program*>(program)->problem;
    return problem.empty() ? nullptr : problem.c_str();
}
EXPORTED void rung_machine_free(void* program) { delete static_cast<Program*>(program); }

EXPORTED int rung_machine_run(void* program, const rung_machine_launch* l, rung_machine_fault* fault)
{
    launch.program = static_cast<Program*>(program);
    prepare(*l);
    executing = nullptr, executing_warp = nullptr;
    struct sigaction now = {}, before[2];
    now.sa_sigaction = touched_nothing, now.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGSEGV, &now, &before[0]), sigaction(SIGBUS, &now, &before[1]);
    int failed = 0;
    begin_numbers();
    try {
        run_grid();
    } catch (const Fault& found) {
        *fault = found, failed = 1;
    }
    end_undefined(), end_numbers();
    note_executed(*launch.program);
    sigaction(SIGSEGV, &before[0], nullptr), sigaction(SIGBUS, &before[1], nullptr);
    return failed;
}

EXPORTED void rung_machine_touched(void (*take)(void*, uint64_t, uint32_t, uint32_t, uint32_t), void* to)
{ each_touched(take, to); }

EXPORTED int rung_machine_unwritten(uint32_t space, rung_machine_fault* found)
{
    if (space >= launch.unwritten.size() || launch.unwritten[space].kind == RUNG_NO_FAULT) return 0;
    return *found = launch.unwritten[space], 1;
}

EXPORTED uint64_t rung_machine_steps() { return launch.executed; }

EXPORTED void rung_machine_tally(void* program, uint64_t (*rows)[2])
{
    for (const Tally& tally : static_cast<Program*>(program)->tally)
        (*rows)[0] = tally.executed, (*rows++)[1] = tally.lanes;
}

EXPORTED uint32_t rung_machine_memory(void* program, uint64_t (*rows)[12], int64_t (*samples)[36], uint32_t room)
{
    uint32_t count = 0;
    for (const Op& op : static_cast<Program*>(program)->ops)
        for (unsigned shared = 0; shared < 2; shared++) {
            const Total& t = op.memory->total[shared];
            if (!t.requests && !t.bytes) continue;
            if (count < room) {
                const bool store = op.stores(shared);
                const uint64_t row[12] = {op.number, shared,          store,          t.requests,
                                          t.lanes,   t.bytes,         t.unique_bytes, t.sectors,
                                          t.lines,   t.ideal_sectors, t.wavefronts,   t.ideal_wavefronts};
                std::copy(row, row + 12, rows[count]);
                const Cost& worst = op.memory->worst;
                samples[count][0] = worst.lanes && worst.shared == bool(shared) ? worst.lanes : 0;
                samples[count][1] = worst.bytes, samples[count][2] = worst.phase,
                samples[count][3] = int64_t(badness(worst));
                std::copy(worst.apart, worst.apart + WARP, samples[count] + 4);
            }
            count++;
        }
    return count;
}

EXPORTED void rung_machine_cold() { forget_launches(); }

EXPORTED int rung_machine_predict(void* program, const rung_machine_launch* l, const double* constants,
                                  uint32_t resident, double shared_bytes, double sets, rung_machine_prediction* made,
                                  double (*stalls)[STALLS], rung_machine_fault* fault)
{
    Constants c;
    memcpy(&c, constants, sizeof c);
    const uint32_t cluster = l->cluster[0] * l->cluster[1] * l->cluster[2];
    const uint64_t blocks = uint64_t(l->grid[0]) * l->grid[1] * l->grid[2];
    std::vector<uint32_t> chosen =
        sample(blocks / cluster, std::max(1u, unsigned(c.multiprocessors) / cluster), resident);
    rung_machine_launch one = *l;
    one.sampled_only = !l->cooperative, one.races = 0, one.multiprocessors = unsigned(c.multiprocessors);
    while (one.sampled = chosen.data(), one.sampled_count = unsigned(chosen.size()),
           rung_machine_run(program, &one, fault)) {
        if (fault->kind == RUNG_UNSUPPORTED && chosen.size() > 1) {  // each is long: fewer tell as much
            const size_t step = std::max<size_t>(2, chosen.size() / 4);
            for (size_t i = 0; i * step < chosen.size(); i++) chosen[i] = chosen[i * step];
            chosen.resize((chosen.size() + step - 1) / step);
        } else if (one.sampled_only)
            one.sampled_only = 0;  // blocks wait for others
        else
            return 1;
    }
    const Simulated found = simulate(*static_cast<Program*>(program), c, blocks, resident, cluster, shared_bytes, sets);
    *made = {found.clocks, found.atomics.clocks, resident, !one.sampled_only, found.atomics.swaps};
    for (const auto& of : found.stalls) std::copy(of.begin(), of.end(), *stalls++);
    if (found.clocks >= 0) return 0;
    *fault = Fault(RUNG_UNSUPPORTED);
    snprintf(fault->text, sizeof fault->text,
             "its blocks wait for each other: the model of time does not simulate that");
    return 1;
}

EXPORTED uint32_t rung_machine_events(uint32_t (*rows)[4], uint32_t room)
{
    for (uint32_t i = 0; i < happened.size() && i < room; i++) memcpy(rows[i], &happened[i], sizeof rows[i]);
    return uint32_t(happened.size());
}

EXPORTED uint32_t rung_machine_trace(uint64_t (*rows)[38], uint32_t room)
{
    for (uint32_t i = 0; i < traced.size() && i < room; i++) memcpy(rows[i], &traced[i], sizeof rows[i]);
    return uint32_t(traced.size());
}
}
