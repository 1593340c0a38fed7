// Symbols that the runtime looks up in a kernel's library: variables, and one entry per kernel.
#pragma once

namespace rung_emulator {

namespace now {
uint3 thread_index, block_index;
dim3 block_dim, grid_dim;
}  // namespace now

template <class T> struct IsPointer { static constexpr bool value = false; };
template <class T> struct IsPointer<T*> { static constexpr bool value = true; };
template <int... I> struct Numbers {};

// Calls a kernel with arguments from an array of pointers; the types are the kernel's parameters'.
template <class F> struct Kernel;
template <class... P>
struct Kernel<void (*)(P...)>
{
    // number of parameters, then their sizes, negative for pointers
    static constexpr int shape[] = {int(sizeof...(P)), (IsPointer<P>::value ? -1 : 1) * int(sizeof(P))...};

    template <class F>
    static inline __attribute__((always_inline)) void call(F kernel, void** values)
    {
        spread(kernel, values, Numbers<__integer_pack(int(sizeof...(P)))...>{});
    }

    template <class F, int... I>
    static inline __attribute__((always_inline)) void spread(F kernel, [[maybe_unused]] void** values, Numbers<I...>)
    {
        kernel(*static_cast<P*>(values[I])...);
    }
};

static thread_local char marker;

}  // namespace rung_emulator

extern thread_local __attribute__((visibility("hidden"))) char rung_dynamic_shared[];

extern "C" RUNG_API const rung_emulator::Module rung_module;
const rung_emulator::Module rung_module = {
    reinterpret_cast<rung_emulator::Index*>(&rung_emulator::now::thread_index),
    reinterpret_cast<rung_emulator::Index*>(&rung_emulator::now::block_index),
    reinterpret_cast<rung_emulator::Index*>(&rung_emulator::now::block_dim),
    reinterpret_cast<rung_emulator::Index*>(&rung_emulator::now::grid_dim),
    []() -> void* { return &rung_emulator::marker; },
    []() -> void* { return rung_dynamic_shared; },
};

#define RUNG_ENTRY(NUMBER, ...) \
    extern "C" RUNG_API void rung_entry_##NUMBER(void** values) \
    { \
        rung_emulator::Kernel<decltype(&__VA_ARGS__)>::call(&__VA_ARGS__, values); \
    } \
    extern "C" RUNG_API const int* rung_shape_##NUMBER() \
    { \
        return rung_emulator::Kernel<decltype(&__VA_ARGS__)>::shape; \
    }
