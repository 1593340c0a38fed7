// Loads and stores with cache hints (plain ones here), and atomics.
#pragma once

#define RUNG_LOAD(NAME) template <class T> inline T NAME(const T* address) { return *address; }
#define RUNG_STORE(NAME) template <class T> inline void NAME(T* address, T value) { *address = value; }
template <class T>
inline T __ldg(const T* address)
{
    rung_read_only(address, sizeof(T));
    return *address;
}
RUNG_LOAD(__ldca)
RUNG_LOAD(__ldcg)
RUNG_LOAD(__ldcs)
RUNG_LOAD(__ldlu)
RUNG_LOAD(__ldcv)
RUNG_STORE(__stwb)
RUNG_STORE(__stcg)
RUNG_STORE(__stcs)
RUNG_STORE(__stwt)

namespace rung_emulator {

// Called after an atomic: one that reads the same value again may be in a wait loop.
template <class T>
inline void seen(T* address, T old)
{
    unsigned long long bits = 0;
    memcpy(&bits, &old, sizeof(T) < 8 ? sizeof(T) : 8);
    rung_atomic(address, bits);
}

}  // namespace rung_emulator

#define RUNG_ATOMIC(NAME, T, BUILTIN) \
    inline T NAME(T* address, T value) \
    { \
        const T old = BUILTIN(address, value, __ATOMIC_RELAXED); \
        rung_emulator::seen(address, old); \
        return old; \
    }
#define RUNG_ATOMIC_INTEGER(T) \
    RUNG_ATOMIC(atomicAdd, T, __atomic_fetch_add) \
    RUNG_ATOMIC(atomicSub, T, __atomic_fetch_sub) \
    RUNG_ATOMIC(atomicAnd, T, __atomic_fetch_and) \
    RUNG_ATOMIC(atomicOr, T, __atomic_fetch_or) \
    RUNG_ATOMIC(atomicXor, T, __atomic_fetch_xor) \
    RUNG_ATOMIC(atomicExch, T, __atomic_exchange_n) \
    inline T atomicCAS(T* address, T expected, T value) \
    { \
        __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
        rung_emulator::seen(address, expected); \
        return expected; \
    } \
    inline T atomicMin(T* address, T value) \
    { return rung_emulator::update(address, [=](T old) { return value < old ? value : old; }); } \
    inline T atomicMax(T* address, T value) \
    { return rung_emulator::update(address, [=](T old) { return old < value ? value : old; }); }

namespace rung_emulator {

// Atomically replaces *address by change(*address); returns the old value.
template <class T, class Change>
inline T update(T* address, Change change)
{
    T old, fresh;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do fresh = change(old);
    while (!__atomic_compare_exchange(address, &old, &fresh, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    seen(address, old);
    return old;
}

}  // namespace rung_emulator

RUNG_ATOMIC_INTEGER(int)
RUNG_ATOMIC_INTEGER(unsigned)
RUNG_ATOMIC_INTEGER(long)
RUNG_ATOMIC_INTEGER(unsigned long)
RUNG_ATOMIC_INTEGER(long long)
RUNG_ATOMIC_INTEGER(unsigned long long)

inline float atomicAdd(float* address, float value) { return rung_emulator::update(address, [=](float old) { return old + value; }); }
inline double atomicAdd(double* address, double value) { return rung_emulator::update(address, [=](double old) { return old + value; }); }
inline float atomicExch(float* address, float value) { return rung_emulator::update(address, [=](float) { return value; }); }
inline float2 atomicAdd(float2* address, float2 value) { return {atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y)}; }
inline float4 atomicAdd(float4* address, float4 value)
{
    return {atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y), atomicAdd(&address->z, value.z),
            atomicAdd(&address->w, value.w)};
}
inline unsigned atomicInc(unsigned* address, unsigned most) { return rung_emulator::update(address, [=](unsigned old) { return old >= most ? 0 : old + 1; }); }
inline unsigned atomicDec(unsigned* address, unsigned most) { return rung_emulator::update(address, [=](unsigned old) { return old == 0 || old > most ? most : old - 1; }); }
inline unsigned short atomicCAS(unsigned short* address, unsigned short expected, unsigned short value)
{
    __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    rung_emulator::seen(address, expected);
    return expected;
}

#define RUNG_ATOMIC_SCOPES(NAME) \
    template <class... A> inline auto NAME##_block(A... a) { return NAME(a...); } \
    template <class... A> inline auto NAME##_system(A... a) { return NAME(a...); }
RUNG_ATOMIC_SCOPES(atomicAdd)
RUNG_ATOMIC_SCOPES(atomicSub)
RUNG_ATOMIC_SCOPES(atomicMin)
RUNG_ATOMIC_SCOPES(atomicMax)
RUNG_ATOMIC_SCOPES(atomicAnd)
RUNG_ATOMIC_SCOPES(atomicOr)
RUNG_ATOMIC_SCOPES(atomicExch)
RUNG_ATOMIC_SCOPES(atomicCAS)
