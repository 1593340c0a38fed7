#include "scheduler.h"

#include "races.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace rung_emulator {

Launch const* launch;
Report* report;
Thread* running;
SharedMemory shared;
const char *code, *code_end;
unsigned long switches;
volatile bool meeting_lanes;

namespace {

constexpr size_t CANARY = 256;  // behind the dynamic shared memory

Fiber scheduler_fiber;
Block* blocks;           // resident at once: one, a cluster, or the whole grid when cooperative
unsigned resident;
Meeting grid_meeting;

// ---- random order -----------------------------------------------------------------------------------------------

struct Random
{
    unsigned long long state;
    explicit Random(unsigned long long seed) : state(seed * 0x9E3779B97F4A7C15ull + 0x1234567ull) {}
    unsigned below(unsigned n)
    {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return unsigned((state >> 32) * n >> 32);
    }
};

template <class T>
void arrange(T* items, unsigned count, unsigned salt)
{
    if (launch->order == int(Order::Reverse))
        for (unsigned i = 0; i < count / 2; i++) { T t = items[i]; items[i] = items[count - 1 - i]; items[count - 1 - i] = t; }
    if (launch->order == int(Order::Shuffled)) {
        Random random(launch->seed * 1000003ull + salt + 1);
        for (unsigned i = count; i > 1; i--) {
            unsigned j = random.below(i);
            T t = items[i - 1]; items[i - 1] = items[j]; items[j] = t;
        }
    }
}

// ---- whose turn -------------------------------------------------------------------------------------------------

void rewind(Block& block)
{
    block.turn_at = 0;
    for (unsigned i = 0; i < block.turn_count; i++) block.turns[i].at = 0;
}

bool any_ready(const Block& block)
{
    for (unsigned i = 0; i < block.turn_count; i++)
        if (block.turns[i].ready) return true;
    return false;
}

Thread* next_ready(Block& block)
{
    for (unsigned tried = 0; tried <= block.turn_count; tried++) {
        Turn& turn = block.turns[block.turn_at];
        if (turn.ready)
            for (;;) {
                Thread* thread = turn.members[turn.at];
                if (++turn.at == turn.count) turn.at = 0;
                if (thread->state == State::Ready) return thread;
            }
        if (++block.turn_at == block.turn_count) block.turn_at = 0;
    }
    return nullptr;
}

void run_next()
{
    Thread* me = running;
    Thread* next = next_ready(*me->block);
    if (next == me) return;
    running = next;
    switches++;
    if (next) *launch->module->thread_index = next->index;
    switch_fiber(*me, next ? static_cast<Fiber&>(*next) : scheduler_fiber);
}

void wait_as(State state, const char* what, Site site)
{
    running->state = state;
    running->what = what;
    running->site = site;
    running->turn->ready--;
}

void wake(Thread& thread)
{
    thread.state = State::Ready;
    thread.turn->ready++;
}

// ---- meetings ---------------------------------------------------------------------------------------------------

bool complete_lanes(Warp& warp, unsigned mask, Collective collective)
{
    const unsigned wanted = mask & warp.alive;
    if ((warp.waiting & wanted) != wanted) return false;
    void* data[WARP];
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(wanted >> lane & 1)) continue;
        const Thread& thread = *warp.lanes[lane];
        if (thread.mask != mask || thread.collective != collective) return false;
        data[lane] = thread.data;
    }
    if (collective) {
        meeting_lanes = true;
        collective(data, wanted);
        meeting_lanes = false;
    } else {
        order_lanes(warp, wanted);
    }
    warp.waiting &= ~wanted;
    for (unsigned lane = 0; lane < WARP; lane++)
        if (wanted >> lane & 1) wake(*warp.lanes[lane]);
    return true;
}

void release(Meeting& meeting)
{
    for (unsigned b = 0; b < meeting.block_count; b++) {
        Block& block = meeting.blocks[b];
        for (unsigned i = 0; i < block.thread_count; i++)
            if (block.threads[i].state == meeting.state) wake(block.threads[i]);
        rewind(block);
        forget(block);
    }
    meeting.arrived = 0;
    meeting.round++;
}

[[noreturn]] void never_reached(const Meeting& meeting)
{
    char text[900];
    describe_waiting(*running->block, text, sizeof text);
    fault(FaultKind::Barrier, "%s is not reached by every thread: %s", meeting.name, text);
}

void arrive(Meeting& meeting)
{
    if (++meeting.arrived < meeting.alive) return;
    if (meeting.alive < meeting.total) never_reached(meeting);
    release(meeting);
}

void leave(Meeting& meeting)
{
    meeting.alive--;
    if (meeting.arrived && meeting.arrived == meeting.alive) never_reached(meeting);
}

// ---- a thread's life --------------------------------------------------------------------------------------------

void thread_main()
{
    launch->entry(launch->args);
    Thread& me = *running;
    Block& block = *me.block;
    me.copies.committed++;
    finish_copies(me, 0);
    me.state = State::Done;
    me.turn->ready--;
    me.warp->alive &= ~(1u << me.lane);
    block.alive--;
    leave(block.barrier);
    if (block.cluster) leave(*block.cluster);
    if (launch->cooperative) leave(grid_meeting);
    for (unsigned lane = 0; lane < WARP; lane++)  // lanes that waited for this one, or for none any more
        if (me.warp->waiting >> lane & 1) {
            const Thread& waiting = *me.warp->lanes[lane];
            complete_lanes(*me.warp, waiting.mask, waiting.collective);
        }
    run_next();
    __builtin_unreachable();
}

// ---- a block's life ---------------------------------------------------------------------------------------------

void set_meeting(Meeting& meeting, State state, const char* name, Block* first, unsigned count)
{
    const unsigned threads = launch->block.x * launch->block.y * launch->block.z;
    meeting = {state, name, first, count, 0, threads * count, threads * count, 1};
}

void allocate(Block& block, unsigned number)
{
    const Index dim = launch->block;
    block.thread_count = dim.x * dim.y * dim.z;
    block.warp_count = (block.thread_count + WARP - 1) / WARP;
    block.threads = new Thread[block.thread_count]();
    block.listed = new Thread*[block.thread_count];
    block.warps = new Warp[block.warp_count]();
    block.turns = new Turn[block.warp_count]();
    for (unsigned i = 0; i < block.thread_count; i++) {
        Thread& thread = block.threads[i];
        thread.index = {i % dim.x, i / dim.x % dim.y, i / (dim.x * dim.y)};
        thread.rank = i;
        thread.lane = i % WARP;
        thread.warp = &block.warps[i / WARP];
        thread.warp->lanes[thread.lane] = &thread;
        thread.block = &block;
        give_stack(thread, number * block.thread_count + i);
    }
    block.saved = resident > 1 ? new char[shared.fixed_bytes + shared.dynamic_bytes + 2 * CANARY] : nullptr;
}

void free_block(Block& block)
{
    for (unsigned i = 0; i < block.thread_count; i++) free(block.threads[i].copies.list);
    for (unsigned i = 0; i < block.warp_count; i++) free(block.warps[i].clocks);
    free(block.past);
    delete[] block.threads;
    delete[] block.listed;
    delete[] block.warps;
    delete[] block.turns;
    delete[] block.saved;
}

// Warps one after the other, each until all its lanes wait; when shuffled, all threads of the block mixed.
void set_turns(Block& block, unsigned salt)
{
    for (unsigned i = 0; i < block.thread_count; i++) block.listed[i] = &block.threads[i];
    if (launch->order == int(Order::Shuffled)) {
        arrange(block.listed, block.thread_count, salt);
        block.turn_count = 1;
        block.turns[0] = {block.listed, block.thread_count, block.thread_count, 0};
    } else {
        arrange(block.listed, block.thread_count, salt);
        block.turn_count = block.warp_count;
        for (unsigned i = 0, first = 0; i < block.turn_count; i++) {
            const Warp* warp = block.listed[first]->warp;
            unsigned count = 0;
            while (first + count < block.thread_count && block.listed[first + count]->warp == warp) count++;
            block.turns[i] = {block.listed + first, count, count, 0};
            first += count;
        }
    }
    for (unsigned i = 0; i < block.turn_count; i++)
        for (unsigned j = 0; j < block.turns[i].count; j++) block.turns[i].members[j]->turn = &block.turns[i];
    block.turn_at = 0;
}

void begin(Block& block, Index index, unsigned salt)
{
    block.index = index;
    block.alive = block.thread_count;
    block.pauses = 0;
    block.finished = false;
    block.count = block.any = 0;
    block.all = 1;
    set_meeting(block.barrier, State::AtBlock, "__syncthreads", &block, 1);
    set_turns(block, salt);
    forget(block);
    for (unsigned i = 0; i < block.warp_count; i++) {
        Warp& warp = block.warps[i];
        const unsigned lanes = block.thread_count - i * WARP;
        warp.alive = lanes >= WARP ? ~0u : (1u << lanes) - 1;
        warp.waiting = 0;
        warp.barrier_round = 0;
    }
    for (unsigned i = 0; i < block.thread_count; i++) {
        Thread& thread = block.threads[i];
        thread.state = State::Ready;
        thread.copies.count = thread.copies.committed = 0;
        start_at(thread, thread_main);
    }
}

void poison_shared(char* fixed, char* dynamic)
{
    if (launch->poison) {
        memset(fixed, 0xff, shared.fixed_bytes);
        if (dynamic) memset(dynamic, 0xff, shared.dynamic_bytes);
    }
    if (dynamic) memset(dynamic + shared.dynamic_bytes, 0xff, CANARY);
}

void save_shared(Block& block)
{
    memcpy(block.saved, shared.fixed, shared.fixed_bytes);
    if (shared.dynamic) memcpy(block.saved + shared.fixed_bytes, shared.dynamic, shared.dynamic_bytes + CANARY);
}

void load_shared(const Block& block)
{
    memcpy(shared.fixed, block.saved, shared.fixed_bytes);
    if (shared.dynamic) memcpy(shared.dynamic, block.saved + shared.fixed_bytes, shared.dynamic_bytes + CANARY);
}

void check_canary(const Block& block)
{
    if (!shared.dynamic) return;
    for (size_t i = 0; i < CANARY; i++)
        if (shared.dynamic[shared.dynamic_bytes + i] != char(0xff)) {
            report->fault = int(FaultKind::Bounds);
            report->block = block.index;
            report->thread = {~0u, ~0u, ~0u};
            snprintf(report->text, sizeof report->text,
                     "a thread wrote %zu bytes past the end of the %zu bytes of dynamic shared memory", i,
                     shared.dynamic_bytes);
            return;
        }
}

// Runs the block until all its threads wait or have ended.
void run_block(Block& block)
{
    Thread* first = next_ready(block);
    if (resident > 1) load_shared(block);
    watch_block(block);
    *launch->module->block_index = block.index;
    *launch->module->thread_index = first->index;
    running = first;
    switch_fiber(scheduler_fiber, *first);
    running = nullptr;
    if (report->fault) return;
    if (block.alive == 0) {
        block.finished = true;
        check_canary(block);
    }
    if (resident > 1) save_shared(block);
}

[[gnu::noinline]] void report_stuck(Block& block)
{
    bool at_barrier = false;
    for (unsigned i = 0; i < block.thread_count; i++) at_barrier |= block.threads[i].state == State::AtBlock;
    report->fault = int(at_barrier ? FaultKind::Barrier : FaultKind::Deadlock);
    report->block = block.index;
    report->thread = {~0u, ~0u, ~0u};
    char text[1200];
    describe_waiting(block, text, sizeof text);
    snprintf(report->text, sizeof report->text, "no thread can go on: %s", text);
}

// Runs `resident` blocks to their end, in turns when they wait for each other.
void run_resident(unsigned* order)
{
    for (unsigned left = resident; left && !report->fault;) {
        bool moved = false;
        for (unsigned i = 0; i < resident && !report->fault; i++) {
            Block& block = blocks[order[i]];
            if (block.finished || !any_ready(block)) continue;
            block.pauses = 0;
            run_block(block);
            moved = true;
            left -= block.finished;
        }
        if (moved) continue;
        for (unsigned i = 0; i < resident; i++)
            if (!blocks[i].finished) return report_stuck(blocks[i]);
    }
}

Index index_at(unsigned linear, Index dim)
{
    return {linear % dim.x, linear / dim.x % dim.y, linear / (dim.x * dim.y)};
}

unsigned volume(Index dim) { return dim.x * dim.y * dim.z; }

}  // namespace

void run_grid()
{
    const Index cluster = launch->cluster, grid = launch->grid;
    const unsigned cluster_size = volume(cluster), total = volume(grid);
    const Index clusters = {grid.x / cluster.x, grid.y / cluster.y, grid.z / cluster.z};
    const bool all = launch->cooperative;
    watch_shared(launch->races);
    resident = all ? total : cluster_size;
    meeting_lanes = false;
    blocks = new Block[resident]();
    for (unsigned i = 0; i < resident; i++) allocate(blocks[i], i);

    unsigned* order = new unsigned[resident];
    for (unsigned i = 0; i < resident; i++) order[i] = i;
    arrange(order, resident, 7);
    const unsigned sets = total / resident;
    unsigned* set_order = new unsigned[sets];
    for (unsigned i = 0; i < sets; i++) set_order[i] = i;
    arrange(set_order, sets, 8);
    Meeting* cluster_meetings = new Meeting[resident / cluster_size];

    for (unsigned s = 0; s < sets && !report->fault; s++) {
        set_meeting(grid_meeting, State::AtGrid, "grid.sync()", blocks, resident);
        for (unsigned c = 0; c < resident / cluster_size; c++)
            set_meeting(cluster_meetings[c], State::AtCluster, "cluster.sync()", blocks + c * cluster_size, cluster_size);
        for (unsigned i = 0; i < resident; i++) {
            const unsigned number = set_order[s] * resident + i;
            const Index origin = index_at(number / cluster_size, clusters);
            const Index inside = index_at(number % cluster_size, cluster);
            begin(blocks[i],
                  {origin.x * cluster.x + inside.x, origin.y * cluster.y + inside.y, origin.z * cluster.z + inside.z},
                  number);
            blocks[i].cluster = cluster_size > 1 ? &cluster_meetings[i / cluster_size] : nullptr;
            blocks[i].cluster_rank = i % cluster_size;
            if (resident > 1)
                poison_shared(blocks[i].saved, shared.dynamic ? blocks[i].saved + shared.fixed_bytes : nullptr);
            else
                poison_shared(shared.fixed, shared.dynamic);
        }
        run_resident(order);
    }
    delete[] cluster_meetings;
    delete[] set_order;
    delete[] order;
    for (unsigned i = 0; i < resident; i++) free_block(blocks[i]);
    delete[] blocks;
    running = nullptr;
}

void abandon()
{
    Thread* me = running;
    running = nullptr;
    switch_fiber(*me, scheduler_fiber);
    __builtin_unreachable();
}

void fault(FaultKind kind, const char* format, ...)
{
    report->fault = int(kind);
    report->block = running->block->index;
    report->thread = running->index;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(report->text, sizeof report->text, format, arguments);
    va_end(arguments);
    abandon();
}

// "threads 0-31 wait at __syncthreads (a.cu:12), threads 32-255 have ended"
void describe_waiting(const Block& block, char* text, size_t room)
{
    size_t used = 0;
    auto add = [&](const char* format, auto... values) {
        if (used < room) used += size_t(snprintf(text + used, room - used, format, values...));
    };
    auto same = [](const Thread& a, const Thread& b) {
        return a.state == b.state && (a.state == State::Ready || a.state == State::Done ||
               (a.what == b.what && a.site.line == b.site.line && (a.state != State::AtLanes || a.mask == b.mask)));
    };
    unsigned kinds = 0;
    text[0] = 0;
    for (unsigned i = 0; i < block.thread_count; i++) {
        const Thread& kind = block.threads[i];
        bool told = false;
        for (unsigned j = 0; j < i && !told; j++) told = same(block.threads[j], kind);
        if (told) continue;
        if (++kinds > 6) { add(", and more"); break; }
        add("%sthread", kinds > 1 ? "; " : "");
        unsigned pieces = 0, total = 0;
        for (unsigned j = i; j < block.thread_count; j++) total += same(block.threads[j], kind);
        if (total > 1) add("s");
        for (unsigned j = i; j < block.thread_count; j++) {
            if (!same(block.threads[j], kind)) continue;
            unsigned last = j;
            while (last + 1 < block.thread_count && same(block.threads[last + 1], kind)) last++;
            if (++pieces > 4) { add(" ..."); break; }
            add(last > j ? "%s %u-%u" : "%s %u", pieces > 1 ? "," : "", j, last);
            j = last;
        }
        if (kind.state == State::Ready) add(" can run");
        else if (kind.state == State::Done) add(total > 1 ? " have ended" : " has ended");
        else {
            add(total > 1 ? " wait at %s" : " waits at %s", kind.what);
            if (kind.state == State::AtLanes) add(" for lanes 0x%08x", kind.mask);
            add(" (%s:%d)", kind.site.file, kind.site.line);
        }
    }
}

void finish_copies(Thread& thread, unsigned groups_left)
{
    Copies& copies = thread.copies;
    unsigned kept = 0;
    for (unsigned i = 0; i < copies.count; i++) {
        const Copy& copy = copies.list[i];
        if (copy.group + groups_left >= copies.committed) copies.list[kept++] = copy;
        else {
            note_copy(copy.to, copy.bytes, copy.place);
            if (copy.valid) memcpy(copy.to, copy.from, size_t(copy.bytes));
            else memset(copy.to, 0, size_t(copy.bytes));
        }
    }
    copies.count = kept;
}

}  // namespace rung_emulator

// ---- what kernels call ------------------------------------------------------------------------------------------

using namespace rung_emulator;

extern "C" {

void rung_meet_lanes(unsigned mask, Collective collective, void* data, const char* what, Site site)
{
    Thread& me = *running;
    Warp& warp = *me.warp;
    if (!(mask >> me.lane & 1))
        fault(FaultKind::Barrier, "lane %u calls %s (%s:%d) with the mask 0x%08x, which does not name it", me.lane, what,
              site.file, site.line, mask);
    me.mask = mask;
    me.collective = collective;
    me.data = data;
    warp.waiting |= 1u << me.lane;
    wait_as(State::AtLanes, what, site);
    complete_lanes(warp, mask, collective);
    run_next();
}

unsigned rung_lanes_running()
{
    const Warp& warp = *running->warp;
    unsigned lanes = 0;
    for (unsigned lane = 0; lane < WARP; lane++)
        if (warp.alive >> lane & 1 && warp.lanes[lane]->state == State::Ready) lanes |= 1u << lane;
    return lanes;
}

int rung_lane() { return int(running->lane); }

int rung_meet_block(int predicate, Vote vote, const char* what, Site site)
{
    Thread& me = *running;
    Block& block = *me.block;
    Warp& warp = *me.warp;
    if (warp.barrier_round != block.barrier.round) {
        warp.barrier_round = block.barrier.round;
        warp.barrier = site;
    } else if (warp.barrier.line != site.line) {
        fault(FaultKind::Barrier, "threads of one warp wait at different barriers, at %s:%d and at %s:%d; the lanes of a warp "
              "must reach the same __syncthreads", warp.barrier.file, warp.barrier.line, site.file, site.line);
    }
    block.count += predicate != 0;
    block.any |= predicate != 0;
    block.all &= predicate != 0;
    wait_as(State::AtBlock, what, site);
    if (block.barrier.arrived + 1 == block.barrier.alive) {
        block.count_result = block.count, block.all_result = block.all, block.any_result = block.any;
        block.count = block.any = 0, block.all = 1;
    }
    arrive(block.barrier);
    run_next();
    return vote == Vote::Count ? block.count_result : vote == Vote::And ? block.all_result : block.any_result;
}

void rung_meet_grid(Site site)
{
    if (!launch->cooperative)
        fault(FaultKind::Barrier, "grid.sync() (%s:%d) in a launch that is not cooperative", site.file, site.line);
    wait_as(State::AtGrid, "grid.sync()", site);
    arrive(grid_meeting);
    run_next();
}

void rung_meet_cluster(Site site)
{
    if (!running->block->cluster) {
        rung_meet_block(0, Vote::Count, "cluster.sync()", site);
        return;
    }
    wait_as(State::AtCluster, "cluster.sync()", site);
    arrive(*running->block->cluster);
    run_next();
}

void rung_copy_async(void* to, const void* from, int bytes, bool valid, Site site)
{
    Copies& copies = running->copies;
    const void* place = __builtin_return_address(0);
    if (size_t(to) % size_t(bytes) || (valid && size_t(from) % size_t(bytes)))
        fault(FaultKind::Bounds, "cp_async of %d bytes (%s:%d) from %p to %p: both must be multiples of %d", bytes, site.file,
              site.line, from, to, bytes);
    if (copies.count == copies.room) {
        copies.room = copies.room ? 2 * copies.room : 16;
        copies.list = static_cast<Copy*>(realloc(copies.list, copies.room * sizeof(Copy)));
    }
    copies.list[copies.count++] = {to, from, bytes, valid, copies.committed, place};
    note_copy(to, bytes, place);  // from now on, and until the wait, nobody else may touch it
    if (launch->poison) memset(to, 0xff, size_t(bytes));  // in flight: neither the old data nor the new
}

void rung_copy_commit() { running->copies.committed++; }
void rung_copy_wait(int groups_left) { finish_copies(*running, unsigned(groups_left)); }

Index rung_cluster_dim() { return launch->cluster; }

void* rung_map_shared(void* address, unsigned rank)
{
    const Block& me = *running->block;
    const unsigned size = volume(launch->cluster);
    if (rank >= size)
        fault(FaultKind::Bounds, "map_shared_rank of block %u in a cluster of %u", rank, size);
    if (rank == me.cluster_rank) return address;
    char* there = static_cast<char*>(address);
    const Block& other = (&me)[int(rank) - int(me.cluster_rank)];
    if (there >= shared.fixed && there < shared.fixed + shared.fixed_bytes) return other.saved + (there - shared.fixed);
    if (shared.dynamic && there >= shared.dynamic && there < shared.dynamic + shared.dynamic_bytes)
        return other.saved + shared.fixed_bytes + (there - shared.dynamic);
    fault(FaultKind::Bounds, "map_shared_rank of %p, which is not in shared memory", address);
}

unsigned rung_dynamic_bytes() { return launch->dynamic_bytes; }

void rung_pause()
{
    Block& block = *running->block;
    if (++block.turn_at == block.turn_count) block.turn_at = 0;  // else threads of this turn would go round for ever
    unsigned ready = 0;
    for (unsigned i = 0; i < block.turn_count; i++) ready += block.turns[i].ready;
    if (++block.pauses < ready || resident == 1) return run_next();
    Thread* me = running;
    running = nullptr;
    switch_fiber(*me, scheduler_fiber);
}

void rung_fault(FaultKind kind, Site site, const char* text)
{
    fault(kind, "%s (%s:%d)", text, site.file, site.line);
}

}  // extern "C"
