// Counts how often each basic block of a kernel compiled for coverage is entered. g++ calls the function below there.
#include "scheduler.h"

#include <stdint.h>

#include <unordered_map>

namespace rung_emulator {

static std::unordered_map<uintptr_t, std::vector<unsigned>> counted;  // by library: entries by their place in it
static std::vector<unsigned>* last;
static uintptr_t last_code;

}  // namespace rung_emulator

using namespace rung_emulator;

extern "C" RUNG_API void __sanitizer_cov_trace_pc()
{
    const uintptr_t at = uintptr_t(__builtin_return_address(0)), base = uintptr_t(code);
    if (!running || at < base || at >= uintptr_t(code_end)) return;
    if (!last || last_code != base) {
        last = &counted[base], last_code = base;
        last->resize(size_t(code_end - code));
    }
    unsigned& count = (*last)[at - base];
    if (count != ~0u) count++;
}

// How often the block was entered whose call returns to `offset` in the library that lies at `base`.
extern "C" RUNG_API unsigned rung_entered(unsigned long long base, unsigned long long offset)
{
    const auto found = counted.find(uintptr_t(base));
    return found == counted.end() || offset >= found->second.size() ? 0 : found->second[offset];
}
