// Thread and block indices, and the block's barriers.
#pragma once

// The runtime sets these whenever it switches threads. Kernels see them as const.
namespace rung_emulator { namespace now {
__attribute__((visibility("hidden"))) extern uint3 thread_index, block_index;
__attribute__((visibility("hidden"))) extern dim3 block_dim, grid_dim;
} }
#ifdef RUNG_PROGRAM  // which may have members of these names
inline constexpr const uint3 &threadIdx = rung_emulator::now::thread_index, &blockIdx = rung_emulator::now::block_index;
inline constexpr const dim3 &blockDim = rung_emulator::now::block_dim, &gridDim = rung_emulator::now::grid_dim;
#else
#define threadIdx (static_cast<const uint3&>(rung_emulator::now::thread_index))
#define blockIdx (static_cast<const uint3&>(rung_emulator::now::block_index))
#define blockDim (static_cast<const dim3&>(rung_emulator::now::block_dim))
#define gridDim (static_cast<const dim3&>(rung_emulator::now::grid_dim))
#endif
constexpr int warpSize = 32;

inline void __syncthreads(rung_emulator::Site site = rung_emulator::here())
{
    rung_meet_block(0, rung_emulator::Vote::Count, "__syncthreads", site);
}
inline int __syncthreads_count(int predicate, rung_emulator::Site site = rung_emulator::here())
{
    return rung_meet_block(predicate, rung_emulator::Vote::Count, "__syncthreads_count", site);
}
inline int __syncthreads_and(int predicate, rung_emulator::Site site = rung_emulator::here())
{
    return rung_meet_block(predicate, rung_emulator::Vote::And, "__syncthreads_and", site);
}
inline int __syncthreads_or(int predicate, rung_emulator::Site site = rung_emulator::here())
{
    return rung_meet_block(predicate, rung_emulator::Vote::Or, "__syncthreads_or", site);
}

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { rung_pause(); }

// A counter: kernels only use differences.
inline long long clock64() { return rung_ticks(); }
#ifndef RUNG_PROGRAM  // whose clock() is the C library's
inline long clock() { return long(clock64()); }
#endif
inline unsigned long long __globaltimer() { return (unsigned long long)clock64(); }
inline unsigned __smid() { return 0; }
