// Where threads wait for each other: lanes of a warp, blocks, clusters, grids.
#include "races.h"

#include <stdio.h>

namespace rung_emulator {

volatile bool meeting_lanes;

void wait_as(State state, const char* what, Site site)
{
    running->state = state;
    running->what = what;
    running->site = site;
    running->turn->ready--;
}

static void wake(Thread& thread)
{
    thread.state = State::Ready;
    thread.turn->ready++;
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
    } else {
        order_lanes(warp, wanted);
    }
    warp.waiting &= ~wanted;
    for (unsigned lane = 0; lane < WARP; lane++)
        if (wanted >> lane & 1) wake(*warp.lanes[lane]);
    return true;
}

static void release(Meeting& meeting)
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

[[noreturn]] static void never_reached(const Meeting& meeting)
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

}  // namespace rung_emulator
