// Blocks of a grid: one after the other, or all that must run together in turns, each with its own shared memory.
#include "async.h"
#include "races.h"

#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>

namespace rung_emulator {

unsigned resident;
Meeting grid_meeting;
unsigned long ended, progress, spins;
unsigned long long launches;
Block* blocks;

namespace {

constexpr size_t CANARY = 256;  // behind the dynamic shared memory

unsigned* set_order;  // the order of the sets of co-resident blocks
bool mixed;           // sets consist of arbitrary blocks; set_order then lists blocks
Block* loaded;  // the block whose shared memory is at the address that the kernel's code uses
// Rounds in which every thread only polls before the launch counts as deadlocked.
constexpr unsigned QUIET_ROUNDS = 4000;

void thread_main()
{
    launch->entry(launch->args);
    Thread& me = *running;
    Block& block = *me.block;
    me.copies.committed++;
    finish_copies(me, 0);
    end_products(me);
    me.state = State::Done;
    ended++, progress++;
    me.turn->ready--;
    me.warp->alive &= ~(1u << me.lane);
    block.alive--;
    leave(block.barrier);
    if (Meeting& meeting = block.cluster ? *block.cluster : block.alone; me.cluster_round == meeting.round) meeting.arrived--;
    leave(block.cluster ? *block.cluster : block.alone);
    if (launch->cooperative) leave(grid_meeting);
    for (unsigned lane = 0; lane < WARP && me.warp->waiting >> lane; lane++)  // that waited for this one, or for nothing any more
        if (me.warp->waiting >> lane & 1) {
            const Thread& waiting = *me.warp->lanes[lane];
            complete_lanes(*me.warp, waiting.mask, waiting.collective);
        }
    run_next();
    __builtin_unreachable();
}

size_t with_canary();

void set_meeting(Meeting& meeting, State state, const char* name, Block* first, unsigned count)
{
    const unsigned threads = launch->block.x * launch->block.y * launch->block.z;
    meeting = {state, name, first, count, 0, threads * count, threads * count, 1, {}, {}};
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
    block.saved = resident > 1 ? new char[with_canary()] : nullptr;
    block.bytes = new std::vector<ByteBarrier*>;
}

void free_block(Block& block)
{
    for (unsigned i = 0; i < block.warp_count; i++) free_products(block.warps[i]);
    for (unsigned i = 0; i < block.thread_count; i++) free(block.threads[i].copies.list);
    free(block.past);
    forget_barriers(block);
    delete block.bytes;
    delete[] block.threads;
    delete[] block.listed;
    delete[] block.warps;
    delete[] block.turns;
    delete[] block.saved;
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
    set_meeting(block.alone, State::AtCluster, "cluster.sync()", &block, 1);
    for (Named& named : block.named) named = {0, 0, 1, {}};
    forget_barriers(block);
    set_turns(block, salt);
    forget_shared(block);
    for (unsigned i = 0; i < block.warp_count; i++) {
        Warp& warp = block.warps[i];
        const unsigned lanes = block.thread_count - i * WARP;
        warp.alive = lanes >= WARP ? ~0u : (1u << lanes) - 1;
        warp.waiting = 0;
        warp.barrier_round = warp.registers = 0;
    }
    for (unsigned i = 0; i < block.thread_count; i++) {
        Thread& thread = block.threads[i];
        thread.state = State::Ready;
        thread.copies.count = thread.copies.committed = 0;
        thread.bulk_committed = thread.products_committed = thread.cluster_round = 0;
        thread.registers_ordered = thread.products_begun = thread.spinning = thread.of_block = thread.timed_out = false;
        thread.polls.used = thread.polls.next = 0;
        start_at(thread, thread_main);
    }
}

size_t with_canary() { return shared_bytes() + (shared.dynamic ? CANARY : 0); }

// Copies the block's shared memory to the address that the kernel's code uses.
void load_shared(Block& block)
{
    if (loaded == &block) return;
    if (loaded) memcpy(loaded->saved, shared.fixed, with_canary());
    if (block.saved) memcpy(shared.fixed, block.saved, with_canary());
    loaded = &block;
}

void poison_shared(Block& block)
{
    char* memory = memory_of(block);
    poison(memory, shared_bytes());
    if (shared.dynamic) memset(memory + shared_bytes(), 0xff, CANARY);
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
                     "a thread wrote %zu bytes past the end of the %zu bytes of dynamic shared memory (`shared` of the launch)", i,
                     shared.dynamic_bytes);
            return;
        }
}

// Runs the block until all its threads are waiting or have ended.
void run_block(Block& block)
{
    load_shared(block);
    *launch->module->block_index = block.index;
    run_first(block);
    if (report->fault) return;
    if (block.alive == 0) {
        block.finished = true;
        check_canary(block);
        end_block(block);
        if (resident > 1) poison(memory_of(block), shared_bytes());  // not readable any more
    }
}

[[gnu::noinline]] void report_stuck()
{
    bool at_barrier = false, spins = false;
    const Block* first = nullptr;
    for (unsigned b = 0; b < resident; b++) {
        if (blocks[b].finished) continue;
        if (!first) first = &blocks[b];
        for (unsigned i = 0; i < blocks[b].thread_count; i++) {
            at_barrier |= blocks[b].threads[i].state == State::AtBlock;
            spins |= blocks[b].threads[i].state == State::Ready || blocks[b].threads[i].state == State::AtBytes;
        }
    }
    report->fault = int(at_barrier && !spins ? FaultKind::Barrier : FaultKind::Deadlock);
    report->block = first->index;
    report->thread = {~0u, ~0u, ~0u};
    char text[1400];
    describe_all(text, sizeof text);
    snprintf(report->text, sizeof report->text, "no thread can go on: %s", text);
}

// Runs `resident` blocks to completion, alternating when they wait for each other.
void run_resident(unsigned* order)
{
    unsigned quiet = 0;
    for (unsigned left = resident; left && !report->fault;) {
        const unsigned long before = progress, spins_before = spins;
        bool moved = false;
        for (unsigned i = 0; i < resident && !report->fault; i++) {
            Block& block = blocks[order[i]];
            if (block.finished || !ready_count(block)) continue;
            block.pauses = 0;
            run_block(block);
            moved = true;
            left -= block.finished;
        }
        if (report->fault) return;
        // Spinning threads may wait for pending asynchronous work, so that it must complete while they spin.
        const bool advanced = progress - before != spins - spins_before;
        if (advanced || complete_one() || progress != before) {
            quiet = 0;
            continue;
        }
        if (!left || (moved && ++quiet < QUIET_ROUNDS) || (launch->others_go_on && launch->others_go_on())) continue;
        return report_stuck();
    }
    if (!report->fault) complete_all();
}

// With the race check, the shuffled order interleaves a few blocks at their atomics: this loses a sum that one atomic reads and
// another writes back.
unsigned taking_turns(unsigned total)
{
    const unsigned threads = volume(launch->block);
    for (unsigned count : {4u, 3u, 2u})
        if (total % count == 0 && threads * count <= 512) return count;
    return 1;
}

unsigned number_of(unsigned set, unsigned resident_number)
{
    return mixed ? set_order[set * resident + resident_number] : set_order[set] * resident + resident_number;
}

Index index_at(unsigned linear, Index dim)
{
    return {linear % dim.x, linear / dim.x % dim.y, linear / (dim.x * dim.y)};
}


}  // namespace

Index block_of_set(unsigned set, unsigned resident_number)
{
    const Index cluster = launch->cluster, grid = launch->grid;
    const unsigned cluster_size = volume(cluster), number = number_of(set, resident_number);
    const Index origin = index_at(number / cluster_size, {grid.x / cluster.x, grid.y / cluster.y, grid.z / cluster.z});
    const Index inside = index_at(number % cluster_size, cluster);
    return {origin.x * cluster.x + inside.x, origin.y * cluster.y + inside.y, origin.z * cluster.z + inside.z};
}

unsigned shared_bytes() { return unsigned(shared.fixed_bytes + (shared.dynamic ? shared.dynamic_bytes : 0)); }

char* memory_of(const Block& block) { return loaded == &block || !block.saved ? shared.fixed : block.saved; }

bool others_started(const Block& block) { return block.cluster->round > 1; }

bool place_of(const void* address, Place& place)
{
    Block& mine = *running->block;
    const unsigned count = mine.cluster ? mine.cluster->block_count : 1;
    Block* first = &mine - mine.cluster_rank;
    for (unsigned i = 0; i < count; i++) {
        const char* memory = memory_of(first[i]);
        if (static_cast<const char*>(address) < memory || static_cast<const char*>(address) >= memory + shared_bytes()) continue;
        place = {first + i, unsigned(static_cast<const char*>(address) - memory)};
        return true;
    }
    return false;
}

// The low bits are those of the pointer, so that both agree on what is aligned.
static unsigned window() { return 1024 + unsigned(reinterpret_cast<uintptr_t>(shared.fixed) % 1024); }

unsigned address_of(Place place) { return place.block->cluster_rank << 24 | (place.offset + window()); }

Place place_at(unsigned address, unsigned bytes, const char* what, Site site)
{
    const unsigned rank = address >> 24, offset = (address & 0xffffff) - window();
    Block& mine = *running->block;
    const unsigned count = mine.cluster ? mine.cluster->block_count : 1;
    if (rank >= count)
        fault(FaultKind::Bounds, "%s (%s:%d) at shared address 0x%x: block %u of a cluster of %u", what, site.file, site.line,
              address, rank, count);
    if (offset > shared_bytes() || bytes > shared_bytes() - offset)
        fault(FaultKind::Bounds, "%s (%s:%d) touches bytes %d to %d of shared memory, which has %u", what, site.file, site.line,
              int(offset), int(offset + bytes), shared_bytes());
    Block& block = mine.cluster ? (&mine - mine.cluster_rank)[rank] : mine;
    if (&block != &mine && !others_started(mine))
        fault(FaultKind::Async, "%s (%s:%d) touches the shared memory of block %u of the cluster, which may not have started: no barrier of "
              "the cluster has been waited for", what, site.file, site.line, rank);
    if (block.finished)
        fault(FaultKind::Async, "%s (%s:%d) touches the shared memory of block %u of the cluster, which has ended", what,
              site.file, site.line, rank);
    return {&block, offset};
}

// The content of unwritten memory: made once per launch for the largest amount so far, then copied.
static char* poisoned;
static size_t poisoned_bytes;
static unsigned long long poisoned_for;

static void make_poison(size_t bytes)
{
    // NaN in every format; huge values of either sign; negative zero; random bits. 0: unchanged memory.
    static const unsigned PATTERNS[] = {0xffffffffu, 0x7f7f7f7fu, 0xff7fff7fu, 0x80008000u};
    constexpr unsigned COUNT = sizeof PATTERNS / sizeof PATTERNS[0];
    const unsigned number = unsigned(launch->poison - 1) % (COUNT + 1);
    const size_t words = bytes / 4 + 1;
    poisoned = static_cast<char*>(realloc(poisoned, words * 4));
    unsigned* at = reinterpret_cast<unsigned*>(poisoned);
    unsigned noise = launch->seed * 2654435761u + 12345u;
    for (size_t i = 0; i < words; i++) {
        if (number == COUNT) noise = noise * 1664525u + 1013904223u;
        at[i] = number == COUNT ? noise ^ noise >> 15 : PATTERNS[number];
    }
    poisoned_bytes = bytes, poisoned_for = launches;
}

void poison(void* to, size_t bytes)
{
    if (!launch->poison || !bytes) return;
    if (poisoned_for != launches || poisoned_bytes < bytes) make_poison(bytes);
    memcpy(to, poisoned, bytes);
}

void run_grid()
{
    const unsigned cluster_size = volume(launch->cluster), total = volume(launch->grid);
    const bool all = launch->cooperative;
    mixed = !all && cluster_size == 1 && launch->races && launch->order == int(Order::Shuffled);
    resident = all ? total : mixed ? taking_turns(total) : cluster_size;
    meeting_lanes = false;
    blocks = new Block[resident]();
    for (unsigned i = 0; i < resident; i++) allocate(blocks[i], i);
    watch(launch->races);

    unsigned* order = new unsigned[resident];
    arrange(order, resident, 7);
    const unsigned sets = total / resident;
    set_order = new unsigned[mixed ? total : sets];
    arrange(set_order, mixed ? total : sets, 8);
    Meeting* cluster_meetings = new Meeting[resident / cluster_size];

    const auto next = [](unsigned s) { return launch->next ? launch->next() : s; };
    for (unsigned s = next(0); s < sets && !report->fault; s = next(s + 1)) {
        loaded = nullptr;
        watch_set(s);
        set_meeting(grid_meeting, State::AtGrid, "grid.sync()", blocks, resident);
        for (unsigned c = 0; c < resident / cluster_size; c++)
            set_meeting(cluster_meetings[c], State::AtCluster, "cluster.sync()", blocks + c * cluster_size, cluster_size);
        for (unsigned i = 0; i < resident; i++) {
            begin(blocks[i], block_of_set(s, i), number_of(s, i));
            blocks[i].cluster = cluster_size > 1 ? &cluster_meetings[i / cluster_size] : nullptr;
            blocks[i].cluster_rank = i % cluster_size;
            poison_shared(blocks[i]);
        }
        run_resident(order);
    }
    unwatch();
    delete[] cluster_meetings;
    delete[] set_order;
    delete[] order;
    for (unsigned i = 0; i < resident; i++) free_block(blocks[i]);
    drop_pending();
    delete[] blocks;
}

}  // namespace rung_emulator
