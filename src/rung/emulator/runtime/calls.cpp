// The functions that kernels call, declared in runtime.h.
#include "async.h"

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
unsigned long atomics;

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

void finish_copies(Thread& thread, unsigned groups_left, unsigned below)
{
    Copies& copies = thread.copies;
    unsigned kept = 0;
    for (unsigned i = 0; i < copies.count; i++) {
        const Copy& copy = copies.list[i];
        const bool waited_for = groups_left < copies.committed && copy.group < copies.committed - groups_left;
        if (!waited_for && copy.number >= below) copies.list[kept++] = copy;
        else {
            note_copy(thread, copy.to, copy.bytes, copy.place);
            memcpy(memory_at(copy.to), copy.from, size_t(copy.taken));
            memset(memory_at(copy.to) + copy.taken, 0, size_t(copy.bytes - copy.taken));
        }
    }
    copies.count = kept;
}

void copy_async(Place to, const void* from, int bytes, int taken, Site site, const void* place)
{
    Copies& copies = running->copies;
    if (size_t(memory_at(to)) % size_t(bytes) || (taken && size_t(from) % size_t(bytes)))
        fault(FaultKind::Bounds, "cp_async of %d bytes (%s:%d) from %p to %p: both must be multiples of %d", bytes, site.file,
              site.line, from, static_cast<void*>(memory_at(to)), bytes);
    if (copies.count == copies.room) {
        copies.room = copies.room ? 2 * copies.room : 16;
        copies.list = static_cast<Copy*>(realloc(copies.list, copies.room * sizeof(Copy)));
    }
    copies.list[copies.count++] = {to, from, bytes, taken, copies.committed, copies.issued++, place};
    if (taken) note_access(from, size_t(taken), false, false, place);
    note_copy(*running, to, bytes, place);  // until the wait, no other access is allowed
    poison(memory_at(to), size_t(bytes));   // in flight: neither the old data nor the new
}

void pause(const void* place)
{
    Thread& me = *running;
    me.spin_place = place;
    Block& block = *me.block;
    me.spinning = true;
    if (++block.turn_at == block.turn_count) block.turn_at = 0;  // otherwise only threads of this turn would run
    if (++block.pauses < ready_count(block)) run_next();
    else leave_block();
    me.spinning = false;
}

void poll(const void* address, unsigned long long value, const void* place)
{
    Polls& polls = running->polls;
    unsigned slot = 0;
    while (slot < polls.used && polls.address[slot] != address) slot++;
    const bool known = slot < polls.used, same = known && polls.value[slot] == value;
    if (!known && polls.used < Polls::ROOM) slot = polls.used++;
    else if (!known) slot = polls.next, polls.next = (polls.next + 1) % Polls::ROOM;
    polls.address[slot] = address, polls.value[slot] = value;
    if (same) pause(place);
    else if (known) progress++;
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

RUNG_API bool rung_in_kernel() { return running; }

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
    arrive_cluster(true, site);
    wait_cluster(true, site);
}

void rung_arrive_cluster(Site site) { arrive_cluster(true, site); }
void rung_wait_cluster(Site site) { wait_cluster(true, site); }

void rung_copy_async(void* to, const void* from, int bytes, bool valid, Site site)
{
    Place target;
    if (!place_of(to, target) || target.block != running->block)
        fault(FaultKind::Bounds, "cp_async (%s:%d) to %p, which is not in the block's shared memory", site.file, site.line, to);
    copy_async(target, from, bytes, valid ? bytes : 0, site, __builtin_return_address(0));
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
    Place place;
    if (!place_of(address, place) || place.block != &me)
        fault(FaultKind::Bounds, "map_shared_rank of %p, which is not in this block's shared memory", address);
    place.block += int(rank) - int(me.cluster_rank);
    return memory_at(place);
}

unsigned rung_shared_address(const void* address, Site site)
{
    Place place;
    if (!place_of(address, place))
        fault(FaultKind::Bounds, "%p (%s:%d) is not in shared memory", address, site.file, site.line);
    return address_of(place);
}

void* rung_shared_pointer(unsigned address, Site site)
{
    return memory_at(place_at(address, 0, "__cvta_shared_to_generic", site));
}

long long rung_ticks()
{
    static long long ticks;
    return ticks += 100;
}

unsigned rung_dynamic_bytes() { return launch->dynamic_bytes; }

void rung_atomic(const void* address, unsigned long long value)
{
    atomics++;
    if (running) poll(address, value, __builtin_return_address(0));
}
unsigned long rung_atomics_ran() { return atomics; }

void rung_read_only(const void* address, unsigned bytes) { if (running) read_only(address, bytes, __builtin_return_address(0)); }
void rung_pause() { if (running) pause(__builtin_return_address(0)); }
void rung_poll(const void* address, unsigned long long value) { if (running) poll(address, value, __builtin_return_address(0)); }

void rung_fault(FaultKind kind, Site site, const char* text)
{
    fault(kind, "%s (%s:%d)", text, site.file, site.line);
}

RUNG_API void rung_fault_at(FaultKind kind, const void* caller, const char* text)
{
    report->counter = (unsigned long long)caller - 1;
    fault(kind, "%s", text);
}

}  // extern "C"
