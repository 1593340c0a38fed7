// Blocks of a grid: one after the other, or all that must run together in turns, each with its own shared memory.
#include "races.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace rung_emulator {

unsigned resident;
Meeting grid_meeting;
unsigned long ended;

namespace {

constexpr size_t CANARY = 256;  // behind the dynamic shared memory

Block* blocks;  // resident at once: one, a cluster, or the whole grid when cooperative

void thread_main()
{
    launch->entry(launch->args);
    Thread& me = *running;
    Block& block = *me.block;
    me.copies.committed++;
    finish_copies(me, 0);
    me.state = State::Done;
    ended++;
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
    if (resident > 1) load_shared(block);
    watch_block(block);
    *launch->module->block_index = block.index;
    run_first(block);
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
            if (block.finished || !ready_count(block)) continue;
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
    arrange(order, resident, 7);
    const unsigned sets = total / resident;
    unsigned* set_order = new unsigned[sets];
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
}

}  // namespace rung_emulator
