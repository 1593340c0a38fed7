#include "fiber.h"

#include <stdint.h>
#include <sys/mman.h>

namespace rung_emulator {

namespace {
constexpr unsigned STACKS_AT_ONCE = 256;
constexpr unsigned MOST_CHUNKS = 1024;
constexpr unsigned GUARDED_CHUNKS = 48;  // a guard page takes two of a process's 65,530 mappings
char* chunks[MOST_CHUNKS];
constexpr size_t SLOT = STACK_BYTES + PAGE;
}  // namespace

void give_stack(Fiber& fiber, unsigned number)
{
    const unsigned chunk = number / STACKS_AT_ONCE, slot = number % STACKS_AT_ONCE;
    if (chunk >= MOST_CHUNKS) __builtin_trap();
    if (!chunks[chunk]) {
        void* memory = mmap(nullptr, SLOT * STACKS_AT_ONCE, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) __builtin_trap();
        chunks[chunk] = static_cast<char*>(memory);
        for (unsigned i = 0; i < STACKS_AT_ONCE && chunk < GUARDED_CHUNKS; i++) mprotect(chunks[chunk] + i * SLOT, PAGE, PROT_NONE);
    }
    fiber.stack = chunks[chunk] + slot * SLOT + PAGE;
    // Tops of stacks at equal offsets would all fall into the same few cache sets.
    fiber.colour = number % 61 * 64;
}

long stack_overflowed(const void* address)
{
    const char* a = static_cast<const char*>(address);
    for (unsigned chunk = 0; chunk < GUARDED_CHUNKS && chunks[chunk]; chunk++) {
        if (a < chunks[chunk] || a >= chunks[chunk] + SLOT * STACKS_AT_ONCE) continue;
        const size_t offset = a - chunks[chunk];
        return offset % SLOT < PAGE ? long(chunk * STACKS_AT_ONCE + offset / SLOT) : -1;
    }
    return -1;
}

#if defined(__x86_64__) && !defined(RUNG_UCONTEXT)

asm(R"(
.text
.p2align 4
.type rung_switch_stacks,@function
rung_switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size rung_switch_stacks, .-rung_switch_stacks
)");
extern "C" __attribute__((visibility("hidden"))) void rung_switch_stacks(void** save, void* load);

void start_at(Fiber& fiber, void (*entry)())
{
    // The entry finds the stack as after a call: 16-byte aligned before the (null) return address.
    uintptr_t top = (reinterpret_cast<uintptr_t>(fiber.stack) + STACK_BYTES - fiber.colour) & ~uintptr_t(15);
    void** sp = reinterpret_cast<void**>(top);
    *--sp = nullptr;
    *--sp = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    fiber.context = sp;
}

void switch_fiber(Fiber& from, Fiber& to) { rung_switch_stacks(&from.context, to.context); }

#else

}  // namespace rung_emulator
#include <ucontext.h>
namespace rung_emulator {

void start_at(Fiber& fiber, void (*entry)())
{
    if (!fiber.context) fiber.context = new ucontext_t;
    ucontext_t* context = static_cast<ucontext_t*>(fiber.context);
    getcontext(context);
    context->uc_stack.ss_sp = fiber.stack;
    context->uc_stack.ss_size = (STACK_BYTES - fiber.colour) & ~size_t(15);
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
}

void switch_fiber(Fiber& from, Fiber& to)
{
    if (!from.context) from.context = new ucontext_t;
    swapcontext(static_cast<ucontext_t*>(from.context), static_cast<ucontext_t*>(to.context));
}

#endif

}  // namespace rung_emulator
