// The host's own loads and stores of memory that pending work uses: pinned memory of asynchronous copies, and managed
// memory of kernels. While the work is pending its pages are protected; an access raises a signal, whose handler
// records it and opens the page.
#include "driver.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <set>

namespace gpuless {
namespace {

struct Watched
{
    unsigned long number;
    Watch what;
    uintptr_t first, last;
};  // pages
struct Access
{
    unsigned long number;
    uintptr_t at;
    bool write, atomic;
    const void* instruction;
};

auto& watched = *new std::vector<Watched>;
auto& accesses = *new std::vector<Access>;
struct sigaction before;
bool closed;

bool holds(const Watch& what, uintptr_t at)
{ return at >= uintptr_t(what.from) && at < uintptr_t(what.from) + what.bytes; }

bool is_atomic(const uint8_t* instruction)  // a lock prefix, or an exchange with memory
{
    const uint8_t* at = instruction;
    for (; *at == 0x66 || *at == 0xf2 || *at == 0xf3 || (*at & 0xf0) == 0x40; at++) {}
    return *at == 0xf0 || *at == 0x86 || *at == 0x87;
}

void accessed(int, siginfo_t* info, void* context)
{
    const uintptr_t at = uintptr_t(info->si_addr), page = at / PAGE * PAGE;
    const auto covers = [&](const Watched& one) { return page >= one.first && page < one.last; };
    if (std::none_of(watched.begin(), watched.end(), covers)) {
        sigaction(SIGSEGV, &before, nullptr);  // the instruction faults once more
        return;
    }
    if (!closed) return;  // another thread has just opened it
    const greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const bool write = registers[REG_ERR] & 2;
    for (const Watched& one : watched)
        if (holds(one.what, at) && (write || one.what.reads))
            accesses.push_back({one.number, at, write, is_atomic(reinterpret_cast<const uint8_t*>(registers[REG_RIP])),
                                reinterpret_cast<const void*>(registers[REG_RIP])});
    mprotect(reinterpret_cast<void*>(page), PAGE, PROT_READ | PROT_WRITE);
}

void protect(const Watched& one, bool close)
{
    if (const Allocation* const memory = allocation_at(one.what.from); !memory || memory->freed) return;
    mprotect(reinterpret_cast<void*>(one.first), one.last - one.first,
             !close           ? PROT_READ | PROT_WRITE
             : one.what.reads ? PROT_NONE
                              : PROT_READ);
}

void tell_access(const Access& access, const Watch& what, const std::string& does)
{
    static auto& told = *new std::set<std::tuple<unsigned, const void*, std::string>>;
    if (!told.emplace(period(), access.instruction, called(what.site)).second) return;
    const Place place = place_of_instruction(access.instruction);
    const std::string where = place.line ? " (" + place.file + ":" + std::to_string(place.line) + ")" : "";
    Told conflict = {"race",
                     "the host" + where + (access.write ? " writes " : " reads ") +
                         describe(reinterpret_cast<void*>(access.at)) + ", which " +
                         called({what.name.c_str(), what.site.address}) + " " + does + ", with no wait between",
                     what.site};
    conflict.other = place;
    tell(RACED, conflict);
}

}  // namespace

void watch(unsigned long number, const std::vector<Watch>& every)
{
    if (!settings().races) return;
    for (const Watch& one : every) {
        const Allocation* const memory = allocation_at(one.from);
        if (!memory || memory->freed || (memory->kind != Kind::Managed && memory->kind != Kind::Pinned)) continue;
        if (!closed && watched.empty() && accesses.empty()) {
            struct sigaction now = {};
            now.sa_sigaction = accessed, now.sa_flags = SA_SIGINFO | SA_NODEFER;
            sigaction(SIGSEGV, nullptr, &before);
            if (before.sa_sigaction != accessed) sigaction(SIGSEGV, &now, &before);
        }
        watched.push_back({number, one, uintptr_t(one.from) / PAGE * PAGE,
                           (uintptr_t(one.from) + one.bytes + PAGE - 1) / PAGE * PAGE});
    }
    close_watched();
}

void open_watched()
{
    if (closed)
        for (const Watched& one : watched) protect(one, false);
    closed = false;
}

void close_watched()
{
    std::stable_partition(watched.begin(), watched.end(),
                          [](const Watched& one) { return !one.what.reads; });  // the stricter last
    for (const Watched& one : watched) protect(one, true);
    closed = !watched.empty();
}

void end_watch(unsigned long number)
{
    for (const Access& access : accesses)
        for (const Watched& one : watched)
            if (access.number == number && one.number == number && one.what.copy && holds(one.what, access.at)) {
                tell_access(access, one.what, one.what.reads ? "writes" : "reads");
                break;
            }
    accesses.erase(
        std::remove_if(accesses.begin(), accesses.end(), [&](const Access& one) { return one.number == number; }),
        accesses.end());
    watched.erase(
        std::remove_if(watched.begin(), watched.end(), [&](const Watched& one) { return one.number == number; }),
        watched.end());
}

bool host_accessed(unsigned long number)
{
    return std::any_of(accesses.begin(), accesses.end(), [&](const Access& one) { return one.number == number; });
}

void touched_beside_host(unsigned long number, uint64_t line, uint32_t read, uint32_t written, uint32_t plain)
{
    for (const Access& access : accesses) {
        const uint32_t word = uint32_t(1) << access.at / 4 % 32;
        if (access.atomic && !(word & plain)) continue;
        if (access.number != number || access.at / 128 != line || !(word & (access.write ? read | written : written)))
            continue;
        for (const Watched& one : watched)
            if (one.number == number && holds(one.what, access.at))
                return tell_access(access, one.what, word & written ? "writes" : "reads");
    }
}

}  // namespace gpuless
