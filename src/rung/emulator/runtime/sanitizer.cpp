// g++ inserts checks of array indices and alignment at a kernel's accesses, and calls these functions when one fails.
#include "scheduler.h"

#include <stdint.h>

namespace {

// As the compiler lays them out.
struct Place { const char* file; uint32_t line, column; };
struct Type { uint16_t kind, info; char name[1]; };
struct Access { Place place; Type* type; unsigned char log_alignment, kind; };
struct Indexing { Place place; Type *array, *index; };

}  // namespace

using namespace rung_emulator;

extern "C" RUNG_API void __ubsan_handle_type_mismatch_v1_abort(Access* access, uintptr_t address)
{
    if (!running) __builtin_trap();
    if (!address) fault(FaultKind::Bounds, "a null pointer is followed (%s:%u)", access->place.file, access->place.line);
    fault(FaultKind::Bounds, "%s is read or written at address 0x%lx, which is no multiple of %u (%s:%u)", access->type->name,
          (unsigned long)address, 1u << access->log_alignment, access->place.file, access->place.line);
}

extern "C" RUNG_API void __ubsan_handle_out_of_bounds_abort(Indexing* indexing, uintptr_t index)
{
    if (!running) __builtin_trap();
    // An integer type's info is its bits (as a power of two) and, lowest, whether it has a sign.
    const unsigned bits = 1u << (indexing->index->info >> 1);
    const long value = bits <= 32 && indexing->index->info & 1 ? long(int32_t(index)) : long(index);
    fault(FaultKind::Bounds, "index %ld is outside of %s (%s:%u)", value, indexing->array->name, indexing->place.file,
          indexing->place.line);
}

// Of a whole program, whose host code goes on: only a kernel's failed checks count.
extern "C" RUNG_API void __ubsan_handle_type_mismatch_v1(Access* access, uintptr_t address)
{
    if (running) __ubsan_handle_type_mismatch_v1_abort(access, address);
}

extern "C" RUNG_API void __ubsan_handle_out_of_bounds(Indexing* indexing, uintptr_t index)
{
    if (running) __ubsan_handle_out_of_bounds_abort(indexing, index);
}
