// Data exchange between blocks without a barrier, as in NCCL's low-latency (LL) protocol: payload and epoch travel in one store
// of 16 bytes. A thread that reads the expected epoch has the payload with it, after one L2 round trip instead of one for a flag
// and one for the data.
#pragma once
#include "mailboxes.cuh"

namespace decode {

__device__ __forceinline__ void send(Packet* to, uint32_t a, uint32_t b, uint32_t c, uint32_t epoch)
{
    asm volatile("{\n\t.reg .b64 lo, hi;\n\t.reg .b128 all;\n\tmov.b64 lo, {%1, %2};\n\tmov.b64 hi, {%3, %4};\n\t"
                 "mov.b128 all, {lo, hi};\n\tst.relaxed.gpu.global.b128 [%0], all;\n\t}" ::"l"(to),
                 "r"(a), "r"(b), "r"(c), "r"(epoch)
                 : "memory");
}

__device__ __forceinline__ Packet try_load(const Packet* at)
{
    Packet p;
    asm volatile("{\n\t.reg .b64 lo, hi;\n\t.reg .b128 all;\n\tld.relaxed.gpu.global.b128 all, [%4];\n\t"
                 "mov.b128 {lo, hi}, all;\n\tmov.b64 {%0, %1}, lo;\n\tmov.b64 {%2, %3}, hi;\n\t}"
                 : "=r"(p.word[0]), "=r"(p.word[1]), "=r"(p.word[2]), "=r"(p.epoch)
                 : "l"(at)
                 : "memory");
    return p;
}

// The same if it is needed; a packet that is not needed counts as arrived.
__device__ __forceinline__ Packet try_load_if(bool wanted, const Packet* at, uint32_t epoch)
{
    Packet p;
    asm volatile("{\n\t.reg .pred wanted;\n\t.reg .b64 lo, hi;\n\t.reg .b128 all;\n\tsetp.ne.b32 wanted, %5, 0;\n\t"
                 "mov.b64 lo, 0;\n\tmov.b64 hi, {0, %6};\n\tmov.b128 all, {lo, hi};\n\t"
                 "@wanted ld.relaxed.gpu.global.b128 all, [%4];\n\tmov.b128 {lo, hi}, all;\n\t"
                 "mov.b64 {%0, %1}, lo;\n\tmov.b64 {%2, %3}, hi;\n\t}"
                 : "=r"(p.word[0]), "=r"(p.word[1]), "=r"(p.word[2]), "=r"(p.epoch)
                 : "l"(at), "r"(int(wanted)), "r"(epoch)
                 : "memory");
    return p;
}

// Thousands of threads that poll for packets which cannot have arrived delay those packets, and the weights. So no thread polls
// before this many cycles have passed.
__device__ __forceinline__ void delay_polling(int cycles)
{
    const unsigned begin = clock();
    // perhaps never skipped: time goes on; perhaps never one turn: it may; perhaps never several turns: or run
    while (unsigned(clock()) - begin < unsigned(cycles)) continue;
}

// Packet i of N is at from(i). All that are needed are requested before the first is examined, and requested again until they
// have arrived.
template <int N, class From, class Wanted>
__device__ __forceinline__ void receive(Packet (&got)[N], uint32_t epoch, From from, Wanted wanted)
{
#pragma unroll
    for (int i = 0; i < N; i++) got[i] = try_load_if(wanted(i), from(i), epoch);
    for (;;) {
        uint32_t missing = 0;
#pragma unroll
        for (int i = 0; i < N; i++) missing |= got[i].epoch ^ epoch;
        if (missing == 0) break;
#pragma unroll
        for (int i = 0; i < N; i++)
            // perhaps never false: packets mostly come together
            if (got[i].epoch != epoch) got[i] = try_load(from(i));
    }
}

template <int N, class From>
__device__ __forceinline__ void receive(Packet (&got)[N], uint32_t epoch, From from)
{
    receive(got, epoch, from, [](int) { return true; });
}

// Waiting for a packet is waiting for its epoch: no barrier is needed.
__device__ __forceinline__ void all_have_sent() {}

}  // namespace decode
