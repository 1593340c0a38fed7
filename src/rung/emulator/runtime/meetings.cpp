// Barriers: of a warp's lanes, blocks, clusters and grids.
#include "async.h"

#include <stdio.h>
#include <string.h>

namespace rung_emulator {

volatile bool meeting_lanes;

void wait_as(State state, const char* what, Site site)
{
    running->state = state;
    running->what = what;
    running->site = site;
    running->turn->ready--;
    progress++;
}

void wake(Thread& thread)
{
    thread.state = State::Ready;
    thread.turn->ready++;
    progress++;
}

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
    }
    // A lane that receives data from ldmatrix also learns that the row was read, whichever lane supplied its address.
    if (wanted && (!collective || strncmp(warp.lanes[__builtin_ctz(wanted)]->what, "ldmatrix", 8) == 0)) order_lanes(warp, wanted);
    warp.waiting &= ~wanted;
    for (unsigned lane = 0; lane < WARP; lane++)
        if (wanted >> lane & 1) wake(*warp.lanes[lane]);
    return true;
}

static void release(Meeting& meeting)
{
    order_blocks(meeting);
    for (unsigned b = 0; b < meeting.block_count; b++) {
        Block& block = meeting.blocks[b];
        for (unsigned i = 0; i < block.thread_count; i++)
            if (block.threads[i].state == meeting.state) wake(block.threads[i]);
        rewind(block);
    }
    if (meeting.state == State::AtCluster) hand_over(meeting.clock, meeting.released);
    meeting.arrived = 0;
    meeting.round++;
}

[[noreturn]] static void never_reached(const Meeting& meeting)
{
    char text[900];
    describe_waiting(*running->block, text, sizeof text);
    fault(FaultKind::Barrier, "%s is not reached by every thread: %s", meeting.name, text);
}

// A cluster's barrier does not wait for threads that have ended.
void arrive(Meeting& meeting)
{
    if (++meeting.arrived < meeting.alive) return;
    if (meeting.state == State::AtCluster) return release(meeting);
    if (meeting.alive < meeting.total) never_reached(meeting);
    release(meeting);
}

void leave(Meeting& meeting)
{
    meeting.alive--;
    if (meeting.state == State::AtCluster && meeting.alive && meeting.arrived == meeting.alive) return release(meeting);
    if (meeting.arrived && meeting.arrived == meeting.alive) never_reached(meeting);
}

void arrive_cluster(bool release, Site site)
{
    Thread& me = *running;
    if (me.cluster_round)
        fault(FaultKind::Barrier, "the thread arrives at the cluster's barrier (%s:%d) again before it has waited there", site.file,
              site.line);
    Meeting& meeting = me.block->cluster ? *me.block->cluster : me.block->alone;
    me.cluster_round = meeting.round;
    if (release) publish(meeting.clock);
    progress++;
    arrive(meeting);
}

void wait_cluster(bool acquire, Site site)
{
    Thread& me = *running;
    if (!me.cluster_round)
        fault(FaultKind::Barrier, "the thread waits at the cluster's barrier (%s:%d) where it has not arrived", site.file, site.line);
    Meeting& meeting = me.block->cluster ? *me.block->cluster : me.block->alone;
    if (me.cluster_round == meeting.round) {
        wait_as(State::AtCluster, "cluster.sync()", site);
        run_next();
    }
    me.cluster_round = 0;
    if (acquire) learn(meeting.released);
}

// bar.sync and bar.arrive: complete when `count` threads have arrived at a barrier number.
void meet_named(unsigned id, unsigned count, bool wait, const char* what, Site site)
{
    Thread& me = *running;
    if (id > 15) fault(FaultKind::Barrier, "%s (%s:%d): barrier %u does not exist; a block has 0 to 15", what, site.file, site.line, id);
    if (!count || count % WARP || count > (me.block->thread_count + WARP - 1) / WARP * WARP)
        fault(FaultKind::Barrier, "%s (%s:%d) for %u threads; take a multiple of 32 that the block has", what, site.file, site.line, count);
    Named& named = me.block->named[id];
    if (named.arrived && named.expected != count)
        fault(FaultKind::Barrier, "%s (%s:%d) for %u threads at barrier %u, where others wait for %u", what, site.file, site.line, count,
              id, named.expected);
    named.expected = count;
    progress++;
    publish(named.clock);
    if (++named.arrived == count) {
        Block& block = *me.block;
        named.arrived = 0, named.round++;
        for (unsigned i = 0; i < block.thread_count; i++) {
            Thread& thread = block.threads[i];
            if (thread.state == State::AtNamed && thread.mask == id) {
                learn_as(thread, named.clock);
                wake(thread);
            }
        }
        if (wait) learn(named.clock);
        empty(named.clock);
    } else if (wait) {
        me.mask = id;
        wait_as(State::AtNamed, what, site);
        run_next();
    }
}

void describe_all(char* text, size_t room)
{
    size_t used = 0;
    unsigned told = 0;
    text[0] = 0;
    for (unsigned b = 0; b < resident && used + 100 < room; b++) {
        const Block& block = blocks[b];
        if (block.finished) continue;
        if (++told > 4) {
            used += size_t(snprintf(text + used, room - used, "; and more blocks"));
            break;
        }
        if (resident > 1)
            used += size_t(snprintf(text + used, room - used, "%sblock (%u, %u, %u): ", told > 1 ? "; " : "", block.index.x,
                                    block.index.y, block.index.z));
        describe_waiting(block, text + used, room - used);
        used = strlen(text);
    }
}

// "threads 0-31 wait at __syncthreads (a.cu:12), threads 32-255 have ended"
void describe_waiting(const Block& block, char* text, size_t room)
{
    size_t used = 0;
    auto add = [&](const char* format, auto... values) {
        if (used < room) used += size_t(snprintf(text + used, room - used, format, values...));
    };
    auto same = [](const Thread& a, const Thread& b) {
        return a.state == b.state && ((a.state == State::Ready && (!a.spinning || a.spin_place == b.spin_place)) || a.state == State::Done ||
               (a.what == b.what && a.site.line == b.site.line && ((a.state != State::AtLanes && a.state != State::AtNamed) || a.mask == b.mask) &&
                (a.state != State::AtBytes || a.bytes == b.bytes)));
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
        if (kind.state == State::Ready && kind.spinning) add(total > 1 ? " look again and again at {%lx}" : " looks again and again at {%lx}", (unsigned long)kind.spin_place);
        else if (kind.state == State::Ready) add(" can run");
        else if (kind.state == State::Done) add(total > 1 ? " have ended" : " has ended");
        else {
            add(total > 1 ? " wait at %s" : " waits at %s", kind.what);
            if (kind.state == State::AtLanes) add(" for lanes 0x%08x", kind.mask);
            if (kind.state == State::AtNamed) add(" %u, where %u of %u have come", kind.mask, block.named[kind.mask].arrived,
                                                  block.named[kind.mask].expected);
            if (kind.caller) add(" at {%lx}", (unsigned long)kind.caller);
            add(" (%s:%d)", kind.site.file, kind.site.line);
            if (kind.state == State::AtBytes) {
                char detail[200];
                describe_bytes(*kind.bytes, detail, sizeof detail);
                add(" for parity %u: %s", kind.phase % 2, detail);
            }
        }
    }
}

}  // namespace rung_emulator
