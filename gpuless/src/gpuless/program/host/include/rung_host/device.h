// What only kernels may call, declared for functions that both sides compile: NVRTC has the real functions. Atomics work on
// the host, too, since algorithms of Thrust and CUB that run there may call them.
#pragma once

inline const uint3 threadIdx = {}, blockIdx = {};
inline const dim3 blockDim, gridDim;
constexpr int warpSize = 32;

#define RUNG_DEVICE(TYPE, NAME) template <class... A> inline TYPE NAME(A...) { __builtin_trap(); }
#define RUNG_SAME(NAME) template <class T, class... A> inline T NAME(unsigned, T, A...) { __builtin_trap(); }
RUNG_DEVICE(void, __syncthreads) RUNG_DEVICE(int, __syncthreads_count) RUNG_DEVICE(int, __syncthreads_and) RUNG_DEVICE(int, __syncthreads_or)
RUNG_DEVICE(void, __threadfence) RUNG_DEVICE(void, __threadfence_block) RUNG_DEVICE(void, __threadfence_system) RUNG_DEVICE(void, __nanosleep)
RUNG_DEVICE(void, __syncwarp) RUNG_DEVICE(unsigned, __ballot_sync) RUNG_DEVICE(int, __any_sync) RUNG_DEVICE(int, __all_sync)
RUNG_DEVICE(unsigned, __activemask) RUNG_DEVICE(unsigned, __match_any_sync) RUNG_DEVICE(unsigned, __match_all_sync)
RUNG_DEVICE(long long, clock64) RUNG_DEVICE(unsigned long long, __globaltimer) RUNG_DEVICE(unsigned, __cvta_generic_to_shared)
RUNG_DEVICE(void, __pipeline_memcpy_async) RUNG_DEVICE(void, __pipeline_commit) RUNG_DEVICE(void, __pipeline_wait_prior)
RUNG_DEVICE(void, cudaGridDependencySynchronize) RUNG_DEVICE(void, cudaTriggerProgrammaticLaunchCompletion)
RUNG_SAME(__shfl_sync) RUNG_SAME(__shfl_up_sync) RUNG_SAME(__shfl_down_sync) RUNG_SAME(__shfl_xor_sync)
RUNG_SAME(__reduce_add_sync) RUNG_SAME(__reduce_min_sync) RUNG_SAME(__reduce_max_sync)
RUNG_SAME(__reduce_and_sync) RUNG_SAME(__reduce_or_sync) RUNG_SAME(__reduce_xor_sync)
#undef RUNG_DEVICE
#undef RUNG_SAME

#define RUNG_LOAD(NAME) template <class T> inline T NAME(const T* address) { return *address; }
#define RUNG_STORE(NAME) template <class T> inline void NAME(T* address, T value) { *address = value; }
RUNG_LOAD(__ldg) RUNG_LOAD(__ldca) RUNG_LOAD(__ldcg) RUNG_LOAD(__ldcs) RUNG_LOAD(__ldlu) RUNG_LOAD(__ldcv)
RUNG_STORE(__stwb) RUNG_STORE(__stcg) RUNG_STORE(__stcs) RUNG_STORE(__stwt)
#undef RUNG_LOAD
#undef RUNG_STORE

namespace rung_emulator {

// Replaces *address by change(*address); returns the old value.
template <class T, class Change>
inline T update(T* address, Change change)
{
    T old, fresh;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do fresh = change(old);
    while (!__atomic_compare_exchange(address, &old, &fresh, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

}  // namespace rung_emulator

#define RUNG_ATOMIC(NAME, VALUE) \
    template <class T, class V> inline T NAME(T* address, V value) { return rung_emulator::update(address, [=](T old) { return T(VALUE); }); } \
    template <class T, class V> inline T NAME##_block(T* address, V value) { return NAME(address, value); } \
    template <class T, class V> inline T NAME##_system(T* address, V value) { return NAME(address, value); }
RUNG_ATOMIC(atomicAdd, old + T(value)) RUNG_ATOMIC(atomicSub, old - T(value)) RUNG_ATOMIC(atomicExch, value)
RUNG_ATOMIC(atomicMin, T(value) < old ? T(value) : old) RUNG_ATOMIC(atomicMax, old < T(value) ? T(value) : old)
RUNG_ATOMIC(atomicAnd, old & value) RUNG_ATOMIC(atomicOr, old | value) RUNG_ATOMIC(atomicXor, old ^ value)
RUNG_ATOMIC(atomicInc, old >= value ? 0 : old + 1) RUNG_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef RUNG_ATOMIC
template <class T> inline T atomicCAS(T* address, T expected, T value)
{
    return rung_emulator::update(address, [=](T old) { return old == expected ? value : old; });
}
