// Entry points for Python, and the handling of faults.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "async.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <ucontext.h>
#endif

namespace rung_emulator {
namespace {

// ---- where a kernel's shared memory lies ------------------------------------------------------------------------

struct Search { const void* inside; char* base; size_t bytes; };

int visit(dl_phdr_info* info, size_t, void* data)
{
    Search& search = *static_cast<Search*>(data);
    bool mine = false;
    size_t bytes = 0;
    const char* end = nullptr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr)& header = info->dlpi_phdr[i];
        const char* start = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
        if (header.p_type == PT_LOAD && search.inside >= start && search.inside < start + header.p_memsz) mine = true;
        if (header.p_type == PT_LOAD && start + header.p_memsz > end) end = start + header.p_memsz;
        if (header.p_type == PT_TLS) bytes = header.p_memsz;
    }
    if (!mine) return 0;
    search.base = static_cast<char*>(info->dlpi_tls_data);
    search.bytes = bytes;
    code = reinterpret_cast<const char*>(info->dlpi_addr);
    code_end = end;
    return 1;
}

// A kernel's __shared__ variables are the whole of its library's thread-local block; the dynamic part comes last, and is
// empty when the source declares none.
SharedMemory find_shared(const Module& module)
{
    module.shared_base();
    Search search = {&module, nullptr, 0};
    dl_iterate_phdr(visit, &search);
    char* dynamic = static_cast<char*>(module.dynamic_shared());
    const size_t fixed_bytes = size_t(dynamic - search.base), room = search.bytes - fixed_bytes;
    return {search.base, fixed_bytes, room ? dynamic : nullptr, room ? launch->dynamic_bytes : 0};
}

// ---- signals ----------------------------------------------------------------------------------------------------

constexpr int CAUGHT[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int COUNT = sizeof CAUGHT / sizeof CAUGHT[0];
struct sigaction before[COUNT];
pthread_t launching;
char* signal_stack;
constexpr size_t SIGNAL_STACK = 64 * 1024;

unsigned long long program_counter(void* context)
{
#if defined(__x86_64__)
    return (unsigned long long)static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
#else
    (void)context;
    return 0;
#endif
}

void on_signal(int number, siginfo_t* info, void* context)
{
    if (!running || !pthread_equal(pthread_self(), launching)) {  // not a kernel's fault: restore the previous handlers
        for (int i = 0; i < COUNT; i++)
            if (CAUGHT[i] == number) sigaction(number, &before[i], nullptr);
        return;
    }
    report->address = info->si_code > 0 && info->si_code != 128 ? (unsigned long long)info->si_addr : 0;
    report->counter = program_counter(context);
    const char* at = reinterpret_cast<const char*>(report->counter);
    if ((at < code || at >= code_end) && running->caller) report->counter = (unsigned long long)running->caller - 1;
    report->block = running->block->index;
    report->thread = running->index;
    if (number == SIGFPE) {
        report->fault = int(FaultKind::Trap);
        snprintf(report->text, sizeof report->text, "an integer is divided by zero");
    } else if (number == SIGILL) {
        report->fault = int(FaultKind::Trap);
        snprintf(report->text, sizeof report->text, "the kernel stopped itself (__trap)");
    } else if (stack_overflowed(info->si_addr) >= 0) {
        report->fault = int(FaultKind::Bounds);
        report->address = 0;
        snprintf(report->text, sizeof report->text, "the thread's stack overflowed: its local variables exceed %zu KB",
                 STACK_BYTES / 1024);
    } else {
        report->fault = int(FaultKind::Bounds);
        if (info->si_code == 128)  // a general protection fault has no address: a misaligned vector access
            snprintf(report->text, sizeof report->text, "a vector is loaded or stored at an address that is no multiple of "
                     "its size (or a wild pointer is followed)");
    }
    abandon();
}

// A thread that has run for long without meeting others is assumed to be spinning and must yield; a launch in which no
// thread has ended for long is stopped. The handler runs on the fiber's own stack, so that it can switch to another fiber.
// It measures this thread's CPU time, so that other load on the machine does not look like spinning or waiting.
constexpr int TICK_MILLISECONDS = 2;
constexpr double PATIENCE = 4e-3;
unsigned long switches_before, ended_before;
double switched_at;
int tick_signal() { return SIGRTMAX - 3; }
double alive_at;

double now()
{
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// A thread that is interrupted again and again in states (registers and stack) in which it was before computes nothing: it waits.
constexpr unsigned REPEATS = 100;  // of all threads

struct StateHash
{
    unsigned long long hash;
    void add(const void* from, const void* to)
    {
        for (auto at = static_cast<const unsigned long long*>(from); at + 1 <= to; at++)
            hash = (hash ^ *at) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29;
    }
    void add_stack(const char* from)
    {
        const char* const end = running->stack + STACK_BYTES;
        if (from >= running->stack && from < end) add(from, end);
    }
};

// Ends the launch if every thread that could run has been seen to wait since the last event.
void note_state(StateHash state, const char* at)
{
    Thread& me = *running;
    const unsigned long events = progress - spins + ended;
    bool known = false;
    for (unsigned long long before : me.states) known |= before == state.hash;
    if (!known) me.states[me.next_state++ % STATES] = state.hash;
    me.repeats = known && me.events == events ? me.repeats + 1 : 0;
    me.events = events;
    unsigned ready = 0;
    for (unsigned b = 0; b < resident; b++) ready += blocks[b].finished ? 0 : ready_count(blocks[b]);
    const unsigned needed = REPEATS / ready < 2 ? 2 : REPEATS / ready;
    if (me.repeats >= needed) {
        bool all = true;
        for (unsigned b = 0; b < resident && all; b++)
            for (unsigned i = 0; i < blocks[b].thread_count && all; i++) {
                const Thread& thread = blocks[b].threads[i];
                all = blocks[b].finished || thread.state != State::Ready || (thread.repeats >= needed && thread.events == events);
            }
        if (all && !(launch->others_go_on && launch->others_go_on())) {
            report->counter = (unsigned long long)at;
            me.spinning = true, me.spin_place = at;
            char text[1000];
            describe_waiting(*me.block, text, sizeof text);
            fault(FaultKind::Deadlock, "no thread can go on: %s", text);
        }
    }
    progress++, spins++;  // it may be waiting for any event
    pause(at);
}

unsigned long long launch_number() { return launches * 0x9E3779B97F4A7C15ull; }

void on_tick(int, siginfo_t*, void* context)
{
    if (!running || !pthread_equal(pthread_self(), launching)) return;
    const char* at = reinterpret_cast<const char*>(program_counter(context));
    const double time = now();
    if (ended != ended_before) alive_at = time;
    ended_before = ended;
    if (switches != switches_before) switched_at = time;
    switches_before = switches;
    const bool waited = running->next_state && running->events == progress - spins + ended;  // it was found waiting, and nothing has happened
    overdue = !meeting_lanes && running->state == State::Ready && time - switched_at >= (waited ? 0 : PATIENCE);
    if (at < code || at >= code_end || meeting_lanes) return;  // never inside the runtime or libc
    if (running->state != State::Ready) return;  // in a collective function, which the runtime has called
    if (time - alive_at > launch->seconds) {
        report->counter = (unsigned long long)at;
        char text[1000];
        describe_waiting(*running->block, text, sizeof text);
        fault(FaultKind::Deadlock, "no thread has ended for %.1f seconds of CPU time (do they wait for one that cannot run?): %s",
              launch->seconds, text);
    }
    if (!overdue) return;
    overdue = false;
    const int error = errno;
    StateHash state = {launch_number()};
#if defined(__x86_64__)
    const mcontext_t& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
    state.add(machine.gregs, machine.gregs + REG_RIP + 1);
    if (machine.fpregs) state.add(machine.fpregs->_xmm, machine.fpregs->_xmm + 16);
    state.add_stack(reinterpret_cast<const char*>(machine.gregs[REG_RSP]) - 128);
#else
    static unsigned long long number;
    state.hash += ++number;  // never seen before
#endif
    note_state(state, at);
    errno = error;
}

struct Guarded  // signal handlers are installed for the duration of a launch
{
    stack_t old_stack;
    struct sigaction old_tick;
    timer_t timer;
    bool ticking;
    Guarded()
    {
        if (!signal_stack) signal_stack = static_cast<char*>(malloc(SIGNAL_STACK));
        stack_t stack = {};
        stack.ss_sp = signal_stack;
        stack.ss_size = SIGNAL_STACK;
        sigaltstack(&stack, &old_stack);
        launching = pthread_self();
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int i = 0; i < COUNT; i++) sigaction(CAUGHT[i], &action, &before[i]);

        alive_at = switched_at = now();
        action.sa_sigaction = on_tick;
        action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
        sigaction(tick_signal(), &action, &old_tick);
        sigevent event = {};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = tick_signal();
        event._sigev_un._tid = pid_t(syscall(SYS_gettid));
        ticking = timer_create(CLOCK_MONOTONIC, &event, &timer) == 0;
        const itimerspec often = {{0, TICK_MILLISECONDS * 1000000}, {0, TICK_MILLISECONDS * 1000000}};
        if (ticking) timer_settime(timer, 0, &often, nullptr);
    }
    ~Guarded()
    {
        if (ticking) timer_delete(timer);
        if (old_tick.sa_handler != SIG_DFL) sigaction(tick_signal(), &old_tick, nullptr);  // a late tick would kill
        for (int i = 0; i < COUNT; i++) sigaction(CAUGHT[i], &before[i], nullptr);
        sigaltstack(&old_stack, nullptr);
    }
};

}  // namespace

volatile bool overdue;

// What a call keeps lies in the registers that a function saves, which are saved here, and on the stack.
__attribute__((noinline)) void yield_at_call(const void* place)
{
    __builtin_unwind_init();
    overdue = false;
    StateHash state = {launch_number()};
    state.add_stack(static_cast<const char*>(__builtin_frame_address(0)) - 40);
    note_state(state, static_cast<const char*>(place));
}

}  // namespace rung_emulator

using namespace rung_emulator;

// One launch at a time: the caller holds a lock.
extern "C" RUNG_API int rung_launch(const Launch* asked, Report* answer)
{
    memset(answer, 0, offsetof(Report, text) + 1);
    launch = asked;
    launches++;
    report = answer;
    shared = find_shared(*asked->module);
    *asked->module->block_dim = asked->block;
    *asked->module->grid_dim = asked->grid;
    {
        Guarded guarded;
        run_grid();
    }
    return report->fault;
}

// A `__constant__` variable of a loaded kernel: its address, and its size through `bytes`; null when there is none.
extern "C" RUNG_API void* rung_symbol(void* library, const char* name, unsigned long long* bytes)
{
    void* address = dlsym(library, name);
    Dl_info info;
    ElfW(Sym)* symbol = nullptr;
    if (!address || !dladdr1(address, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) || !symbol) return nullptr;
    if (!info.dli_sname || strcmp(info.dli_sname, name) != 0) return nullptr;
    *bytes = symbol->st_size;
    return address;
}

// `bytes` of memory between two pages that fault; the end touches the upper one as closely as 16 bytes allow. Whole pages lie
// at `near` if that is free.
extern "C" RUNG_API void* rung_guarded(unsigned long long bytes, unsigned long long near, void** mapped, unsigned long long* length)
{
    const size_t page = size_t(sysconf(_SC_PAGESIZE)), rounded = (bytes + 15) / 16 * 16;
    const size_t inner = (rounded + page - 1) / page * page;
    const size_t guard = 16 * page;
    char* memory = static_cast<char*>(
        mmap(near ? reinterpret_cast<void*>(near - guard) : nullptr, inner + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (memory == MAP_FAILED || mprotect(memory + guard, inner, PROT_READ | PROT_WRITE)) return nullptr;
    *mapped = memory;
    *length = inner + 2 * guard;
    memset(memory + guard, 0xff, inner);
    return memory + guard + inner - rounded;
}

extern "C" RUNG_API void rung_unmap(void* mapped, unsigned long long length) { munmap(mapped, length); }
