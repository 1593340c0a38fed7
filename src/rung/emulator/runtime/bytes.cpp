// Barriers of arrivals and bytes: mbarrier.
#include "async.h"

#include <stdio.h>
#include <string.h>

namespace rung_emulator {

static unsigned long long tokens;

// A barrier's memory identifies it, so that using an uninitialized or overwritten barrier is reported.
void init_bytes(Place place, unsigned count, Site site)
{
    if (place.offset % 8) fault(FaultKind::Bounds, "mbarrier.init (%s:%d) at an address that is no multiple of 8", site.file, site.line);
    if (!count || count >= 1u << 20)
        fault(FaultKind::Async, "mbarrier.init (%s:%d) for %u arrivals; 1 to %u are possible", site.file, site.line, count, (1u << 20) - 1);
    note_barrier(place);
    std::vector<ByteBarrier*>& all = *place.block->bytes;
    if (all.empty()) all.resize(shared_bytes() / 8 + 1);
    ByteBarrier*& barrier = all[place.offset / 8];
    if (barrier) {
        unsigned long long found;
        memcpy(&found, memory_at(place), 8);
        if (found == barrier->token && (barrier->pending != barrier->expected || barrier->bytes))
            fault(FaultKind::Async, "mbarrier.init (%s:%d) of a barrier (set up at %s:%d) whose phase is under way", site.file,
                  site.line, barrier->init.file, barrier->init.line);
    } else {
        barrier = new ByteBarrier{};
        barrier->agent = agent_of_barrier(place.offset / 8 + place.block->cluster_rank);
    }
    const Clock arriving = barrier->arriving, complete = barrier->complete;
    *barrier = {place, 0x9E3779B97F4A7C15ull * ++tokens, count, count, 0, 0, site, arriving, complete, barrier->agent};
    memcpy(memory_at(place), &barrier->token, 8);
}

ByteBarrier& barrier_at(Place place, const char* what, Site site)
{
    const std::vector<ByteBarrier*>& all = *place.block->bytes;
    if (ByteBarrier* barrier = place.offset % 8 == 0 && place.offset / 8 < all.size() ? all[place.offset / 8] : nullptr) {
        unsigned long long found;
        memcpy(&found, memory_at(place), 8);
        if (found != barrier->token)
            fault(FaultKind::Async, "%s (%s:%d) on the barrier set up at %s:%d, which something has written over since", what,
                  site.file, site.line, barrier->init.file, barrier->init.line);
        return *barrier;
    }
    fault(FaultKind::Async, "%s (%s:%d) on a barrier that no mbarrier.init has set up (byte %u of shared memory)", what,
          site.file, site.line, place.offset);
}

void invalidate_bytes(Place place, const char* what, Site site)
{
    ByteBarrier& barrier = barrier_at(place, what, site);
    if (barrier.bytes)
        fault(FaultKind::Async, "%s (%s:%d) on a barrier to which %ld bytes are still to come", what, site.file, site.line, barrier.bytes);
    (*place.block->bytes)[place.offset / 8] = nullptr;
    delete &barrier;
    poison(memory_at(place), 8);
}

static void finish_phase(ByteBarrier& barrier)
{
    if (barrier.pending || barrier.bytes) return;
    barrier.phase++;
    barrier.pending = barrier.expected;
    hand_over(barrier.arriving, barrier.complete);
    progress++;
    Block& block = *barrier.place.block;
    for (unsigned i = 0; i < block.thread_count; i++) {
        Thread& thread = block.threads[i];
        if (thread.state == State::AtBytes && thread.bytes == &barrier) wake(thread);
    }
}

void expect_bytes(ByteBarrier& barrier, long bytes, const char* what, Site site)
{
    barrier.bytes += bytes;
    if (barrier.bytes >= 1 << 20)
        fault(FaultKind::Async, "%s (%s:%d) expects %ld bytes in a phase; %u is the most", what, site.file, site.line,
              barrier.bytes, (1u << 20) - 1);
    finish_phase(barrier);
}

unsigned arrive_bytes(ByteBarrier& barrier, unsigned count, bool release, const char* what, Site site)
{
    const unsigned phase = barrier.phase;
    if (count > barrier.pending)
        fault(FaultKind::Async, "%s (%s:%d): one arrival too many in phase %u of the barrier set up at %s:%d for %u, to which %ld "
              "bytes are still to come", what, site.file, site.line, phase, barrier.init.file, barrier.init.line,
              barrier.expected, barrier.bytes);
    if (release) publish(barrier.arriving);
    barrier.pending -= count;
    finish_phase(barrier);
    return phase;
}

void complete_bytes(ByteBarrier& barrier, long bytes, const char* what, Site site)
{
    barrier.bytes -= bytes;
    if (barrier.bytes <= -(1 << 20))
        fault(FaultKind::Async, "%s (%s:%d): %ld bytes came to the barrier set up at %s:%d that nobody expects", what, site.file,
              site.line, -barrier.bytes, barrier.init.file, barrier.init.line);
    finish_phase(barrier);
}

bool test_bytes(ByteBarrier& barrier, bool by_parity, unsigned phase)
{
    return by_parity ? barrier.phase % 2 != phase % 2 : barrier.phase > phase;
}

void learn_bytes(ByteBarrier& barrier) { learn(barrier.complete); }

// Returns true when the phase is complete, and sometimes false earlier: a try_wait may time out, and its caller must
// retry.
bool wait_bytes(ByteBarrier& barrier, bool by_parity, unsigned phase, const char* what, Site site)
{
    if (!test_bytes(barrier, by_parity, phase)) {
        if (!running->timed_out) {  // each thread's first wait does
            running->timed_out = true;
            return false;
        }
        if (launch->order == int(Order::Shuffled) && random_below(4) == 0) {
            pause(running->caller);
            return test_bytes(barrier, by_parity, phase) && (learn_bytes(barrier), true);
        }
        Thread& me = *running;
        me.bytes = &barrier;
        me.phase = by_parity ? phase % 2 : phase;
        wait_as(State::AtBytes, what, site);
        run_next();
    }
    learn_bytes(barrier);
    return true;
}

void forget_barriers(Block& block)
{
    for (ByteBarrier* barrier : *block.bytes) delete barrier;
    block.bytes->clear();
}

// "phase 3 lacks 1 of 4 arrivals and 512 bytes"
void describe_bytes(const ByteBarrier& barrier, char* text, size_t room)
{
    int used = snprintf(text, room, "phase %u of the barrier set up at line %d lacks", barrier.phase, barrier.init.line);
    if (barrier.pending)
        used += snprintf(text + used, room - size_t(used), " %u of %u arrivals", barrier.pending, barrier.expected);
    if (barrier.bytes > 0)
        snprintf(text + used, room - size_t(used), "%s %ld bytes", barrier.pending ? " and" : "", barrier.bytes);
    else if (barrier.bytes < 0)
        snprintf(text + used, room - size_t(used), "%s the announcement of %ld bytes that have come", barrier.pending ? " and" : "",
                 -barrier.bytes);
}

}  // namespace rung_emulator
