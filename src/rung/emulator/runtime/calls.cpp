// What kernels call; runtime.h declares it.
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

void abandon()
{
    leave_block();
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
    if (++block.pauses < ready_count(block) || resident == 1) return run_next();
    leave_block();
}

void rung_fault(FaultKind kind, Site site, const char* text)
{
    fault(kind, "%s (%s:%d)", text, site.file, site.line);
}

}  // extern "C"
