// g++'s thread sanitizer calls these at every access to memory; the rules of what is ordered are CUDA's, and only shared
// memory is looked at: __syncthreads orders a block, __syncwarp the lanes of its mask, shuffles and votes order nothing.
#include "races.h"

#include <stdint.h>
#include <stdlib.h>

namespace rung_emulator {
namespace {

bool watching;
unsigned last_epoch;
uintptr_t base;
size_t bytes;
Past* past;         // of the block that runs

unsigned& clock_of(const Thread& thread, unsigned lane) { return thread.warp->clocks[thread.lane * WARP + lane]; }

// Has `thread` met the other one, at or after its `clock`?
bool ordered(const Thread& thread, unsigned other, unsigned clock)
{
    if (other == thread.rank) return true;
    return other / WARP == thread.rank / WARP && clock_of(thread, other % WARP) >= clock;
}

[[noreturn]] void race(const Thread& me, uintptr_t address, bool write, unsigned place, unsigned other, bool other_writes,
                       unsigned other_place)
{
    report->address = address - base;
    report->counter = uintptr_t(code) + place;
    report->other_counter = uintptr_t(code) + other_place;
    report->other = me.block->threads[other].index;
    fault(FaultKind::Race, "%s what thread (%u, %u, %u) %s", write ? "writes" : "reads", report->other.x, report->other.y,
          report->other.z, other_writes ? "has written" : "has read");
}

void access(uintptr_t address, size_t size, bool write, bool atomic, const void* caller)
{
    const size_t offset = address - base;
    if (offset >= bytes || !running) return;
    const Thread& me = *running;
    const unsigned epoch = me.block->epoch, clock = clock_of(me, me.lane);
    const unsigned place = unsigned(static_cast<const char*>(caller) - code - 1);  // inside the call
    for (size_t i = offset / 2, end = (offset + size + 1) / 2; i < end && i < bytes / 2; i++) {
        Past& was = past[i];
        if (was.write_epoch == epoch && !(atomic && was.write_atomic) && !ordered(me, was.writer, was.write_clock))
            race(me, address, write, place, was.writer, true, was.write_place);
        if (write) {
            if (was.read_epoch == epoch && !(atomic && was.read_atomic)) {
                if (!ordered(me, was.reader, was.read_clock)) race(me, address, true, place, was.reader, false, was.read_place);
                if (!ordered(me, was.other_reader, was.other_read_clock))
                    race(me, address, true, place, was.other_reader, false, was.other_read_place);
            }
            was.write_epoch = epoch, was.writer = (unsigned short)me.rank, was.write_atomic = atomic;
            was.write_clock = clock, was.write_place = place;
        } else if (was.read_epoch != epoch) {
            was.read_epoch = epoch, was.read_atomic = atomic;
            was.reader = was.other_reader = (unsigned short)me.rank;
            was.read_clock = was.other_read_clock = clock;
            was.read_place = was.other_read_place = place;
        } else if (was.reader == me.rank) {
            was.read_clock = clock, was.read_place = place, was.read_atomic &= atomic;
        } else {
            was.other_reader = (unsigned short)me.rank, was.other_read_clock = clock, was.other_read_place = place;
            was.read_atomic &= atomic;
        }
    }
}

}  // namespace

void watch_shared(bool on)
{
    watching = on;
    base = uintptr_t(shared.fixed);
    bytes = !on ? 0 : shared.dynamic ? size_t(shared.dynamic - shared.fixed) + shared.dynamic_bytes : shared.fixed_bytes;
}

void watch_block(Block& block)
{
    if (!watching) return;
    if (!block.past) block.past = static_cast<Past*>(calloc(bytes / 2 + 1, sizeof(Past)));
    past = block.past;
}

void forget(Block& block)
{
    block.epoch = ++last_epoch;
    if (!watching) return;
    for (unsigned w = 0; w < block.warp_count; w++) {
        Warp& warp = block.warps[w];
        if (!warp.clocks) warp.clocks = static_cast<unsigned*>(malloc(WARP * WARP * sizeof(unsigned)));
        for (unsigned i = 0; i < WARP; i++)
            for (unsigned j = 0; j < WARP; j++) warp.clocks[i * WARP + j] = i == j;
    }
}

void order_lanes(Warp& warp, unsigned lanes)
{
    if (!watching) return;
    unsigned latest[WARP] = {};
    for (unsigned i = 0; i < WARP; i++)
        if (lanes >> i & 1)
            for (unsigned j = 0; j < WARP; j++)
                if (latest[j] < warp.clocks[i * WARP + j]) latest[j] = warp.clocks[i * WARP + j];
    for (unsigned i = 0; i < WARP; i++)
        if (lanes >> i & 1) {
            for (unsigned j = 0; j < WARP; j++) warp.clocks[i * WARP + j] = latest[j];
            warp.clocks[i * WARP + i]++;
        }
}

void note_copy(const void* to, int size, const void* place) { access(uintptr_t(to), size_t(size), true, false, place); }

}  // namespace rung_emulator

// ---- what g++ calls ---------------------------------------------------------------------------------------------------

using namespace rung_emulator;
#define HERE __builtin_return_address(0)

extern "C" {

#define PLAIN(SIZE) \
    RUNG_API void __tsan_read##SIZE(void* a) { access(uintptr_t(a), SIZE, false, false, HERE); } \
    RUNG_API void __tsan_write##SIZE(void* a) { access(uintptr_t(a), SIZE, true, false, HERE); } \
    RUNG_API void __tsan_volatile_read##SIZE(void* a) { access(uintptr_t(a), SIZE, false, false, HERE); } \
    RUNG_API void __tsan_volatile_write##SIZE(void* a) { access(uintptr_t(a), SIZE, true, false, HERE); } \
    RUNG_API void __tsan_unaligned_read##SIZE(void* a) { access(uintptr_t(a), SIZE, false, false, HERE); } \
    RUNG_API void __tsan_unaligned_write##SIZE(void* a) { access(uintptr_t(a), SIZE, true, false, HERE); }
RUNG_API void __tsan_read1(void*) {}  // neighbouring bytes share what is remembered
RUNG_API void __tsan_write1(void*) {}
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
RUNG_API void __tsan_read_range(void* a, size_t size) { access(uintptr_t(a), size, false, false, HERE); }
RUNG_API void __tsan_write_range(void* a, size_t size) { access(uintptr_t(a), size, true, false, HERE); }
RUNG_API void __tsan_func_entry(void*) {}
RUNG_API void __tsan_func_exit() {}
RUNG_API void __tsan_init() {}
RUNG_API void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#define FETCH(BITS, T, NAME) \
    RUNG_API T __tsan_atomic##BITS##_fetch_##NAME(T* a, T value, int) \
    { \
        access(uintptr_t(a), sizeof(T), true, true, HERE); \
        return __atomic_fetch_##NAME(a, value, __ATOMIC_SEQ_CST); \
    }
#define ATOMIC(BITS, T) \
    RUNG_API T __tsan_atomic##BITS##_load(const T* a, int) \
    { \
        access(uintptr_t(a), sizeof(T), false, true, HERE); \
        return __atomic_load_n(a, __ATOMIC_SEQ_CST); \
    } \
    RUNG_API void __tsan_atomic##BITS##_store(T* a, T value, int) \
    { \
        access(uintptr_t(a), sizeof(T), true, true, HERE); \
        __atomic_store_n(a, value, __ATOMIC_SEQ_CST); \
    } \
    RUNG_API T __tsan_atomic##BITS##_exchange(T* a, T value, int) \
    { \
        access(uintptr_t(a), sizeof(T), true, true, HERE); \
        return __atomic_exchange_n(a, value, __ATOMIC_SEQ_CST); \
    } \
    RUNG_API int __tsan_atomic##BITS##_compare_exchange_strong(T* a, T* expected, T value, int, int) \
    { \
        access(uintptr_t(a), sizeof(T), true, true, HERE); \
        return __atomic_compare_exchange_n(a, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    } \
    RUNG_API int __tsan_atomic##BITS##_compare_exchange_weak(T* a, T* expected, T value, int, int) \
    { \
        access(uintptr_t(a), sizeof(T), true, true, HERE); \
        return __atomic_compare_exchange_n(a, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    } \
    FETCH(BITS, T, add) \
    FETCH(BITS, T, sub) \
    FETCH(BITS, T, and) \
    FETCH(BITS, T, or) \
    FETCH(BITS, T, xor)
ATOMIC(16, unsigned short)
ATOMIC(32, unsigned)
ATOMIC(64, unsigned long)

}  // extern "C"
