// Which iteration of which loops a thread is in, for counters: lanes that execute an instruction in the same iteration do
// so together. The asm statements have no operand in memory: a store would keep loads inside loops.
#pragma once

#ifdef RUNG_COUNTED
extern "C" {
__attribute__((visibility("hidden"), used)) unsigned long rung_path;
}

namespace rung_emulator {

inline __attribute__((always_inline)) unsigned long path()
{
    unsigned long now;
#ifdef __x86_64__
    asm volatile("movq rung_path(%%rip), %0" : "=r"(now));
#else
    now = *const_cast<volatile unsigned long*>(&rung_path);
#endif
    return now;
}

inline __attribute__((always_inline)) void set_path(unsigned long to)
{
#ifdef __x86_64__
    asm volatile("movq %0, rung_path(%%rip)" : : "r"(to));
#else
    *const_cast<volatile unsigned long*>(&rung_path) = to;
#endif
}

inline __attribute__((always_inline)) bool turn(bool yes, unsigned long outer, unsigned long& n, unsigned long site)
{
    if (yes) set_path((outer + site + ++n) * 0x9E3779B97F4A7C15ul + n);
    return yes;
}

}  // namespace rung_emulator

inline __attribute__((always_inline)) void rung_left(unsigned long* outer) { rung_emulator::set_path(*outer); }  // cleanup takes plain names

#define RUNG_LOOP \
    for (unsigned long rung_outer __attribute__((cleanup(rung_left))) = rung_emulator::path(), rung_n = 0, rung_once = 1; \
         rung_once; rung_once = 0)
#define RUNG_TURN(SITE, ...) rung_emulator::turn(bool(__VA_ARGS__), rung_outer, rung_n, SITE##ul << 32)
#endif
