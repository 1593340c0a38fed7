// Functions of the driver that a kernel calls: their arguments lie in registers from R4 on, and so does the result.
#include "machine.h"

#include <stdio.h>

namespace rung_machine {
namespace {

uint64_t argument(const Warp& w, unsigned row, unsigned lane)
{ return w.r[row][lane] | uint64_t(w.r[row + 1][lane]) << 32; }

const char* text_at(Warp& w, uint64_t generic, unsigned lane)
{
    bool shared;
    return reinterpret_cast<const char*>(place(w, generic, lane, 1, shared));
}

// Arguments lie one behind the other, each at a multiple of its size.
uint32_t print(Warp& w, unsigned lane, const char* format, const char* arguments)
{
    FILE* const out = launch.prints == 2 ? stderr : stdout;
    size_t at = 0;
    uint32_t count = 0;
    const auto next = [&](auto value) {
        at = (at + sizeof value - 1) / sizeof value * sizeof value;
        memcpy(&value, arguments + at, sizeof value);
        use_words(arguments + at, sizeof value);
        at += sizeof value, count++;
        return value;
    };
    for (const char* c = format; *c; c++) {
        if (*c != '%' || c[1] == '%') {
            fputc(*c, out);
            c += *c == '%';
            continue;
        }
        std::string how;
        bool wide = false;
        for (; *c && (c[0] == '%' || strchr("-+ #0123456789.*hlLqjzt", *c)); c++) {
            if (*c == '*')
                how += std::to_string(next(int()));
            else
                how += *c;
            wide |= strchr("lqjzt", *c) != nullptr;
        }
        if (!*c) break;
        how += *c;
        if (strchr("eEfFgGaA", *c))
            fprintf(out, how.c_str(), next(double()));
        else if (*c == 's')
            fprintf(out, how.c_str(), text_at(w, next(uint64_t()), lane));
        else if (*c == 'p' || wide)
            fprintf(out, how.c_str(), next(uint64_t()));
        else
            fprintf(out, how.c_str(), next(int()));
    }
    return count;
}

// A barrier of all threads of the grid: of CUDA's device runtime.
struct GridArrival
{ uint32_t waiting, passing; };  // lanes of a warp
std::unordered_map<const Warp*, GridArrival> at_grid_barrier;
uint64_t arrived_at_grid_barrier;

// Whether lanes may go on; else the call is made again.
bool synchronize_grid(Warp& w, uint32_t lanes)
{
    if (!launch.cooperative) fail(w, RUNG_BARRIER, "the grid synchronizes, and its launch is not cooperative");
    const uint64_t place = uint64_t(&arrived_at_grid_barrier);
    GridArrival& here = at_grid_barrier[&w];
    if (const uint32_t arrive = lanes & ~(here.waiting | here.passing)) {
        fence(w, OF_GPU, arrive), publish(w, arrive, place, OF_GPU + 1, true, true);
        here.waiting |= arrive, launch.changes++;
        arrived_at_grid_barrier += unsigned(__builtin_popcount(arrive));
        uint64_t all = 1;
        for (unsigned axis = 0; axis < 3; axis++) all *= uint64_t(launch.grid[axis]) * launch.block[axis];
        if (arrived_at_grid_barrier == all) {
            arrived_at_grid_barrier = 0;
            for (auto& [_, other] : at_grid_barrier) other = {0, other.waiting};
        }
    }
    w.gives_way = lanes & ~here.passing;
    if (w.gives_way) return false;
    here.passing &= ~lanes;
    publish(w, lanes, place, OF_GPU + 1, true, false), acquire_pending(w, OF_GPU, lanes);
    return true;
}

}  // namespace

void begin_driver() { at_grid_barrier.clear(), arrived_at_grid_barrier = 0; }

void call_driver(Warp& w, uint64_t function, uint32_t lanes)
{
    if (function == DRIVER_WINDOW + SYNCHRONIZES_GRID && !synchronize_grid(w, lanes)) return;
    each(lanes, [&](unsigned lane) {
        const uint64_t first = argument(w, 4, lane);
        uint64_t result = 0;
        if (function == DRIVER_WINDOW + ASSERTION_FAILS) {
            Fault fault(RUNG_TRAP);
            fault.at = where(w, *executing, lane), fault.asserts = 1;
            snprintf(fault.text, sizeof fault.text, "an assertion fails: %.200s", text_at(w, first, lane));
            throw fault;
        }
        if (function == DRIVER_WINDOW + PRINTS) {
            if (launch.prints) result = print(w, lane, text_at(w, first, lane), text_at(w, argument(w, 6, lane), lane));
        } else if (function == DRIVER_WINDOW + ALLOCATES && launch.allocate)
            result = uint64_t(launch.allocate(first));
        else if (function == DRIVER_WINDOW + RELEASES && launch.release) {
            if (const char* wrong = launch.release(reinterpret_cast<void*>(first)))
                fail(w, RUNG_TRAP, "the kernel traps: %s", wrong);
        } else if (function == DRIVER_WINDOW + NAMES_GROUP)
            result = uint32_t(first);  // the grid's handle is its scope
        else if (function != DRIVER_WINDOW + SYNCHRONIZES_GRID)
            fail(w, RUNG_UNSUPPORTED, "a function that is not part of the kernel is called");
        w.r[4][lane] = uint32_t(result);
        if (function == DRIVER_WINDOW + ALLOCATES || function == DRIVER_WINDOW + NAMES_GROUP)
            w.r[5][lane] = uint32_t(result >> 32);
    });
}

}  // namespace rung_machine
