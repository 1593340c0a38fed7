// Whose turn it is among the threads of a block, and the order in which turns come.
#include "async.h"

namespace rung_emulator {

unsigned long switches;

namespace {

Fiber scheduler_fiber;

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
void swap(T& a, T& b)
{
    const T kept = a;
    a = b, b = kept;
}

template <class T>
void arrange_any(T* items, unsigned count, unsigned salt)
{
    if (launch->order == int(Order::Reverse))
        for (unsigned i = 0; i < count / 2; i++) swap(items[i], items[count - 1 - i]);
    if (launch->order == int(Order::Shuffled)) {
        Random random(launch->seed * 1000003ull + salt + 1);
        for (unsigned i = count; i > 1; i--) swap(items[i - 1], items[random.below(i)]);
    }
}

}  // namespace

unsigned random_below(unsigned n)
{
    static Random random(0);
    static unsigned long long begun;
    if (begun != launches) begun = launches, random = Random(launch->seed * 7919ull + 11);
    return random.below(n);
}

void arrange(unsigned* numbers, unsigned count, unsigned salt)
{
    for (unsigned i = 0; i < count; i++) numbers[i] = i;
    arrange_any(numbers, count, salt);
}

// Warps one after the other, each until all its lanes wait; when shuffled, all threads of the block mixed.
void set_turns(Block& block, unsigned salt)
{
    for (unsigned i = 0; i < block.thread_count; i++) block.listed[i] = &block.threads[i];
    arrange_any(block.listed, block.thread_count, salt);
    block.turn_at = block.turn_count = 0;
    for (unsigned first = 0; first < block.thread_count;) {
        unsigned count = 0;
        while (first + count < block.thread_count && (launch->order == int(Order::Shuffled) ||
                                                      block.listed[first + count]->warp == block.listed[first]->warp))
            count++;
        Turn& turn = block.turns[block.turn_count++];
        turn = {block.listed + first, count, count, 0};
        for (unsigned i = 0; i < count; i++) turn.members[i]->turn = &turn;
        first += count;
    }
}

void rewind(Block& block)
{
    block.turn_at = 0;
    for (unsigned i = 0; i < block.turn_count; i++) block.turns[i].at = 0;
}

unsigned ready_count(const Block& block)
{
    unsigned count = 0;
    for (unsigned i = 0; i < block.turn_count; i++) count += block.turns[i].ready;
    return count;
}

static Thread* next_ready(Block& block)
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

// Each stack has its own pages, and with many threads they are evicted from the caches between two turns: most of a switch
// would be spent waiting for the first lines of the next stack.
static void fetch_stack_after(const Thread& thread)
{
    const Turn& turn = *thread.turn;
    const Thread& after = *turn.members[turn.at];
    __builtin_prefetch(turn.members[turn.at + 1 < turn.count ? turn.at + 1 : 0]);
    for (unsigned line = 0; line < 5; line++) __builtin_prefetch(static_cast<const char*>(after.context) + 64 * line);
}

void run_next()
{
    Thread* me = running;
    if (repeats) compare_repeats();
    complete_some();
    Thread* next = next_ready(*me->block);
    if (next == me) return;
    running = next;
    switches++;
    if (next) {
        *launch->module->thread_index = next->index;
        fetch_stack_after(*next);
    }
    switch_fiber(*me, next ? static_cast<Fiber&>(*next) : scheduler_fiber);
}

void run_first(Block& block)
{
    running = next_ready(block);
    *launch->module->thread_index = running->index;
    switch_fiber(scheduler_fiber, *running);
    running = nullptr;
}

extern "C" __attribute__((visibility("default"))) unsigned long rung_switches() { return switches; }

void leave_block()
{
    Thread* me = running;
    if (repeats) compare_repeats();
    running = nullptr;
    switch_fiber(*me, scheduler_fiber);
}

}  // namespace rung_emulator
