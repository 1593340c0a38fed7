// Included before a kernel that names the block's scope and is compiled to look for races: its fences and atomics tell the
// race detector of their scope.
extern "C" void rung_of_block(bool on);  // whether the thread's next atomics are its block's

namespace rung_emulator {

template <class Call>
inline auto of_block(Call call)
{
    rung_of_block(true);
    const auto old = call();
    rung_of_block(false);
    return old;
}

}  // namespace rung_emulator

#define __threadfence_block() __atomic_thread_fence(__ATOMIC_ACQ_REL)  // distinguished from the others by its order
#define atomicAdd_block(...) rung_emulator::of_block([&] { return atomicAdd(__VA_ARGS__); })
#define atomicSub_block(...) rung_emulator::of_block([&] { return atomicSub(__VA_ARGS__); })
#define atomicMin_block(...) rung_emulator::of_block([&] { return atomicMin(__VA_ARGS__); })
#define atomicMax_block(...) rung_emulator::of_block([&] { return atomicMax(__VA_ARGS__); })
#define atomicAnd_block(...) rung_emulator::of_block([&] { return atomicAnd(__VA_ARGS__); })
#define atomicOr_block(...) rung_emulator::of_block([&] { return atomicOr(__VA_ARGS__); })
#define atomicExch_block(...) rung_emulator::of_block([&] { return atomicExch(__VA_ARGS__); })
#define atomicCAS_block(...) rung_emulator::of_block([&] { return atomicCAS(__VA_ARGS__); })
