// Memory that a process may access only while it is open: any other access is counted, and the program continues.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "launch.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace rung_emulator {
namespace {

struct Pages { char* start; size_t bytes; };

std::vector<Pages> watched;
volatile bool shut;
volatile unsigned long long touched;  // number of accesses while it was closed
pid_t owner;
constexpr int FAULTS[] = {SIGSEGV, SIGBUS};
struct sigaction beyond[2];  // the previous handlers, for other addresses

void protect(int how)
{
    for (const Pages& pages : watched) mprotect(pages.start, pages.bytes, how);
}

void on_touch(int number, siginfo_t* info, void*)
{
    const char* at = static_cast<const char*>(info->si_addr);
    if (shut && getpid() == owner)
        for (const Pages& pages : watched)
            if (at >= pages.start && at < pages.start + pages.bytes) {
                touched = touched + 1;
                shut = false;
                protect(PROT_READ | PROT_WRITE);
                return;
            }
    for (int i = 0; i < 2; i++)
        if (FAULTS[i] == number) sigaction(number, &beyond[i], nullptr);
}

}  // namespace
}  // namespace rung_emulator

using namespace rung_emulator;

// Whole pages that rung_shut closes; with no bytes, they are forgotten.
extern "C" RUNG_API void rung_watch(void* start, unsigned long long bytes)
{
    for (size_t i = 0; i < watched.size(); i++)
        if (watched[i].start == start) watched[i] = watched.back(), watched.pop_back(), i--;
    if (bytes) watched.push_back({static_cast<char*>(start), size_t(bytes)});
}

// From now on accesses to closed memory are counted, from zero.
extern "C" RUNG_API void rung_watch_begin()
{
    struct sigaction action = {};
    action.sa_sigaction = on_touch;
    action.sa_flags = SA_SIGINFO;
    for (int i = 0; i < 2; i++) {
        struct sigaction old;
        sigaction(FAULTS[i], &action, &old);
        if (old.sa_sigaction != on_touch) beyond[i] = old;
    }
    owner = getpid();
    touched = 0;
}

extern "C" RUNG_API unsigned long long rung_touched() { return touched; }

// Closes the pages, unless they were accessed already.
extern "C" RUNG_API void rung_shut()
{
    if (shut || touched) return;
    shut = true;
    protect(PROT_NONE);
}

extern "C" RUNG_API void rung_unshut()
{
    if (!shut) return;
    shut = false;
    protect(PROT_READ | PROT_WRITE);
}
