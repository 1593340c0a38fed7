// The queue of asynchronous copies that have not completed.
#include "async.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

namespace rung_emulator {

static std::vector<Pending*> pending;
static bool from_scheduler;
static jmp_buf scheduler_place;
static unsigned long serials;

char* memory_of(const Span& span) { return span.shared.block ? memory_at(span.shared) : span.global; }

// Pieces of 16 bytes are permuted within 32, 64 or 128 bytes, by address bits above 128.
static unsigned swizzled(unsigned address, unsigned swizzle)
{
    const unsigned bits = (1u << swizzle) - 1;
    return address ^ (address >> 7 & bits) << 4;
}

static void move_tile(const Span& span, char* packed, bool to_memory)
{
    char* memory = memory_of(span);
    const unsigned base = address_of(span.shared) & 0xffffff;
    for (unsigned at = 0; at < span.bytes; at += 16) {
        char* there = memory + int(swizzled(base + at, span.swizzle)) - int(base);
        const unsigned bytes = span.bytes - at < 16 ? span.bytes - at : 16;
        if (to_memory) memcpy(there, packed + at, bytes);
        else memcpy(packed + at, there, bytes);
    }
}

static void read_sources(Pending& operation)
{
    operation.read = true;
    for (const Span& span : operation.from) {
        const size_t at = operation.data.size();
        operation.data.resize(at + span.bytes);
        if (span.swizzle) move_tile(span, operation.data.data() + at, false);
        else if (!span.fill) memcpy(operation.data.data() + at, memory_of(span), span.bytes);
        else
            for (unsigned i = 0; i < span.bytes; i++)
                operation.data[at + i] = reinterpret_cast<const char*>(&span.value)[i % span.value_bytes];
    }
}

static void write_targets(Pending& operation)
{
    const size_t count = operation.data.size();
    size_t at = 0;  // several targets of a multicast get the same data, one after the other
    for (const Span& span : operation.to) {
        if (at == count) at = 0;
        if (!span.fill) {
            if (span.shared.block && span.shared.block->finished)
                fault(FaultKind::Async, "%s (%s:%d) writes to the shared memory of a block which has ended", operation.what,
                      operation.site.file, operation.site.line);
            if (operation.reduce) operation.reduce(memory_of(span), operation.data.data() + at, span.bytes);
            else if (span.swizzle) move_tile(span, operation.data.data() + at, true);
            else memcpy(memory_of(span), operation.data.data() + at, span.bytes);
        }
        at += span.bytes;
    }
}

static void finish(Pending& operation)
{
    progress++;
    if (operation.kind == Async::Arrive) {
        ByteBarrier& barrier = *operation.barriers[0];
        Thread& thread = *operation.thread;
        finish_copies(thread, ~0u, operation.copies);
        publish_of(thread, barrier.arriving);
        arrive_bytes(barrier, 1, false, operation.what, operation.site);
    } else {
        if (!operation.read) read_sources(operation);
        write_targets(operation);
        for (ByteBarrier* barrier : operation.barriers) {
            agent_done(operation.agent, operation.serial, barrier->arriving);
            complete_bytes(*barrier, operation.bytes, operation.what, operation.site);
        }
    }
}

// Operations run as a thread of the issuing block, so that faults name it.
static void complete(size_t number)
{
    Pending* operation = pending[number];
    pending.erase(pending.begin() + long(number));
    Thread* before = running;
    running = operation->thread;
    finish(*operation);
    running = before;
    delete operation;
}

// While a copy is pending, its target holds neither the old data nor the new.
static void spoil_targets(const Pending& operation)
{
    for (const Span& span : operation.to)
        if (span.shared.block && !operation.reduce) poison(memory_of(span), span.bytes);
}

void issue(Pending* operation)
{
    operation->serial = ++serials;
    operation->thread = running;
    if (operation->kind == Async::Copy || operation->kind == Async::Store) spoil_targets(*operation);
    note_operation(*operation);
    progress++;
    pending.push_back(operation);
    if (launch->order == int(Order::Reverse) && operation->kind != Async::CopyOut) complete(pending.size() - 1);
}

void complete_some()
{
    if (pending.empty() || launch->order != int(Order::Shuffled) || random_below(8)) return;
    complete_one();
}

void abandon()
{
    if (from_scheduler) longjmp(scheduler_place, 1);
    leave_block();
    __builtin_unreachable();
}

// Called by a waiting thread, or by the scheduler, which is not a fiber that a fault could leave.
bool complete_one()
{
    // A copy out of shared memory is done when it is waited for, or when all blocks have ended.
    size_t ready[64], count = 0;
    for (size_t i = 0; i < pending.size() && count < 64; i++)
        if (pending[i]->kind != Async::CopyOut) ready[count++] = i;
    if (!count) return false;
    if (!running) {
        from_scheduler = true;
        if (setjmp(scheduler_place)) {
            from_scheduler = false;
            running = nullptr;
            return true;
        }
    }
    complete(ready[launch->order == int(Order::Shuffled) ? random_below(unsigned(count)) : 0]);
    from_scheduler = false;
    return true;
}

void complete_all()
{
    while (!report->fault && complete_one()) continue;
    for (Pending* operation : pending) operation->kind = Async::Copy;
    while (!report->fault && complete_one()) continue;
}

void drop_pending()
{
    for (Pending* operation : pending) delete operation;
    pending.clear();
}

void wait_copies_out(unsigned groups_left, bool reading_only)
{
    Thread& me = *running;
    for (size_t i = 0; i < pending.size();) {
        Pending& operation = *pending[i];
        if (operation.kind != Async::CopyOut || operation.thread != &me || operation.group + groups_left >= me.bulk_committed) {
            i++;
        } else if (reading_only) {
            if (!operation.read) read_sources(operation);
            agent_known(operation.agent, operation.serial);
            i++;
        } else {
            agent_known(operation.agent, operation.serial), agent_known(writing_agent(operation), operation.serial);
            complete(i);
        }
    }
}

void arrive_after_copies(ByteBarrier& barrier, bool counted, const char* what, Site site)
{
    if (counted) barrier.pending++;  // the later arrival is in addition to the barrier's own count
    Pending* operation = new Pending{};
    operation->kind = Async::Arrive;
    operation->barriers.push_back(&barrier);
    operation->copies = running->copies.issued;
    operation->what = what;
    operation->site = site;
    issue(operation);
}

// A block's shared memory ends with it.
void end_block(Block& block)
{
    for (const Pending* operation : pending) {
        if (operation->kind == Async::CopyOut && operation->thread->block == &block && !operation->read) {
            report->fault = int(FaultKind::Async);
            report->block = block.index;
            report->thread = operation->thread->index;
            snprintf(report->text, sizeof report->text,
                     "the block ends while a copy out of its shared memory (%s, %s:%d) may still read it: wait with "
                     "cp.async.bulk.wait_group.read", operation->what, operation->site.file, operation->site.line);
            return;
        }
        for (const Span& span : operation->to)
            if (span.shared.block == &block) {
                report->fault = int(FaultKind::Async);
                report->block = block.index;
                report->thread = operation->thread->index;
                snprintf(report->text, sizeof report->text, "the block ends while a copy into its shared memory (%s, %s:%d) is "
                         "under way: somebody must wait for it", operation->what, operation->site.file, operation->site.line);
                return;
            }
    }
}

}  // namespace rung_emulator
