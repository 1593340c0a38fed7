// malloc and new in kernels: a heap of its own. Nothing is used twice during a launch, so that
// threads that reuse memory do not seem to race.
#include "driver.h"

#include "../machine/unwritten.h"

#include <string.h>
#include <sys/mman.h>

#include <atomic>

namespace gpuless {
namespace {

constexpr size_t ROOM = size_t(1) << 30;  // of addresses
struct State
{ std::atomic<size_t> next, live; };
struct Header
{ size_t bytes, mark; };
constexpr size_t HELD = 0x68656c64, ENDED = 0x656e6465;

char* heap;  // a page of its state, then the blocks
State& state() { return *reinterpret_cast<State*>(heap); }

}  // namespace

void begin_heap()
{
    if (!heap) {
        void* const memory =
            mmap(nullptr, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return;
        heap = static_cast<char*>(memory);
        new (heap) State{{PAGE}, {0}};
    }
    if (!state().live && state().next > PAGE) {
        madvise(heap + PAGE, state().next - PAGE, MADV_DONTNEED);
        state().next = PAGE;
    }
}

const void* heap_memory(size_t* bytes) { return heap ? (*bytes = ROOM - PAGE, heap + PAGE) : nullptr; }
bool in_heap(const void* address) { return heap && address >= heap + PAGE && address < heap + ROOM; }

void* heap_malloc(size_t bytes)
{
    const size_t limit = limit_of(CU_LIMIT_MALLOC_HEAP_SIZE);
    const size_t whole = (bytes + sizeof(Header) + 15) / 16 * 16;
    if (!heap || !bytes || bytes > limit || state().live + bytes > limit || state().next + whole > ROOM) return nullptr;
    const size_t at = state().next.fetch_add(whole);
    if (at + whole > ROOM) return nullptr;
    state().live += bytes;
    Header* const header = new (heap + at) Header{bytes, HELD};
    rung_machine::fill_unwritten(header + 1, (bytes + 7) / 8 * 8, uint64_t(header + 1));
    return header + 1;
}

const char* heap_release(void* pointer)
{
    if (!pointer) return nullptr;
    Header* const header = static_cast<Header*>(pointer) - 1;
    if (!in_heap(header) || (header->mark != HELD && header->mark != ENDED))
        return "free or delete is given a pointer that no malloc or new of a kernel has returned";
    if (header->mark == ENDED) return "free or delete is given memory that was freed";
    header->mark = ENDED;
    state().live -= header->bytes;
    rung_machine::fill_unwritten(pointer, (header->bytes + 7) / 8 * 8, uint64_t(pointer));
    return nullptr;
}

}  // namespace gpuless
