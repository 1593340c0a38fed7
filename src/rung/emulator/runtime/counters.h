// Counts accesses as the hardware does: the accesses of a warp's lanes that belong to one execution of one instruction are
// one request, of so many sectors of global memory or so many passes over the banks of shared memory.
#pragma once
#include "scheduler.h"

#include <stdint.h>

namespace rung_emulator {

struct Pending;

// How an access is made: load or store, atomic, ldmatrix or stmatrix, cp.async, bulk or tensor copy, wgmma operand, barrier.
enum class Way : unsigned char { Plain, Atomic, Matrix, AsyncCopy, Bulk, Operand, Barrier };

extern bool counting;  // the kernel was compiled to report accesses, and they are counted

void begin_counting();  // at the start of a launch
void end_counting();
void count_access(uintptr_t address, size_t bytes, bool write, Way way, const void* caller);
void count_operation(const Pending& operation);
void count_bytes(uintptr_t address, size_t bytes, bool write, Way way, const void* caller);  // by one thread for all
// What the first block does, in order: a copy begins, and has arrived; products of a warp; a barrier of threads, and one of
// bytes; a group of cp.async begins, and is waited for; products are waited for.
enum class Event : unsigned { Copy, Arrived, Product, Barrier, WaitBytes, Group, WaitGroup, WaitProducts };
void count_event(Event event, const Thread& thread, unsigned amount = 0, unsigned long serial = 0);
void count_barrier(const void* caller);
void count_product(bool asynchronous, unsigned count);  // instructions of a warp for tensor cores
void settle(Warp& warp);  // all of its lanes have converged: their requests are complete
void settle_last(Warp& warp);  // all of its lanes have ended
void settle_block(Block& block);
void free_counters(Warp& warp);
void exchange_paths(Thread* from, const Thread* to);  // another thread runs

}  // namespace rung_emulator
