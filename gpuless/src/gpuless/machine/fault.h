// What went wrong in a launch, as a record: sentences and JSON are made from it. emulator/machine.py declares it again.
#pragma once
#include <stdint.h>

enum rung_fault_kind : uint32_t  // in the order of gpuless.base.errors.FAULTS
{
    RUNG_NO_FAULT,
    RUNG_BARRIER,
    RUNG_DEADLOCK,
    RUNG_BOUNDS,
    RUNG_SHARED,
    RUNG_UNSUPPORTED,
    RUNG_TRAP,
    RUNG_RACE,
    RUNG_ASYNC,
    RUNG_UNWRITTEN,
    RUNG_UNFINISHED
};

enum rung_space : uint32_t { RUNG_NO_SPACE, RUNG_GLOBAL_SPACE, RUNG_SHARED_SPACE, RUNG_LOCAL_SPACE };

struct rung_where  // who did it, at which instruction; instruction -1 and lane 32 where that is not known
{
    int32_t instruction;
    uint32_t block[3], thread, lane;  // the thread's number within its block
};

struct rung_machine_fault
{
    rung_fault_kind kind;
    rung_space space;
    rung_where at, other;
    uint64_t address;  // of the access: in shared memory from its start
    uint32_t bytes;
    uint32_t writes;  // the access; 2: it is an atomic one
    uint32_t other_wrote;
    uint32_t misaligned;  // the multiple that the address should be
    uint32_t asserts;     // a trap: an assertion failed
    char text[1024];      // what happened, in words without places
    char lacks[160];      // of a race: what would have ordered the accesses
};
