// Data exchange between the blocks of one kernel without a barrier: a payload and the epoch in which it was sent travel in one
// store, and whoever reads the expected epoch has the payload with it.
#pragma once
#include "rung.cuh"

namespace llama {

// Two neighbouring words of a mailbox, each with its epoch.
struct Two
{
    uint32_t word[2], epoch[2];
};
struct Packet
{
    uint32_t word[3], epoch;
};

__device__ __forceinline__ void send(uint2* to, uint32_t word, uint32_t epoch)
{
    asm volatile("{\n\t.reg .b64 all;\n\tmov.b64 all, {%1, %2};\n\tst.relaxed.gpu.global.b64 [%0], all;\n\t}" ::"l"(to),
                 "r"(word), "r"(epoch)
                 : "memory");
}

__device__ __forceinline__ void send(Packet* to, uint32_t a, uint32_t b, uint32_t c, uint32_t epoch)
{
    asm volatile("{\n\t.reg .b64 lo, hi;\n\t.reg .b128 all;\n\tmov.b64 lo, {%1, %2};\n\tmov.b64 hi, {%3, %4};\n\t"
                 "mov.b128 all, {lo, hi};\n\tst.relaxed.gpu.global.b128 [%0], all;\n\t}" ::"l"(to),
                 "r"(a), "r"(b), "r"(c), "r"(epoch)
                 : "memory");
}

__device__ __forceinline__ void try_load(Two& got, const uint2* at)
{
    asm volatile("{\n\t.reg .b64 lo, hi;\n\tld.relaxed.gpu.global.v2.b64 {lo, hi}, [%4];\n\tmov.b64 {%0, %1}, lo;\n\t"
                 "mov.b64 {%2, %3}, hi;\n\t}"
                 : "=r"(got.word[0]), "=r"(got.epoch[0]), "=r"(got.word[1]), "=r"(got.epoch[1])
                 : "l"(at)
                 : "memory");
}

__device__ __forceinline__ void try_load(Packet& got, const Packet* at)
{
    asm volatile("{\n\t.reg .b64 lo, hi;\n\t.reg .b128 all;\n\tld.relaxed.gpu.global.b128 all, [%4];\n\t"
                 "mov.b128 {lo, hi}, all;\n\tmov.b64 {%0, %1}, lo;\n\tmov.b64 {%2, %3}, hi;\n\t}"
                 : "=r"(got.word[0]), "=r"(got.word[1]), "=r"(got.word[2]), "=r"(got.epoch)
                 : "l"(at)
                 : "memory");
}

__device__ __forceinline__ bool has_come(const Two& got, uint32_t epoch)
{
    return ((got.epoch[0] ^ epoch) | (got.epoch[1] ^ epoch)) == 0;
}
__device__ __forceinline__ bool has_come(const Packet& got, uint32_t epoch) { return got.epoch == epoch; }

// Packet i of N is at from(i). All are requested before the first is examined, and requested again until they have come.
template <int N, class T, class From>
__device__ __forceinline__ void receive(T (&got)[N], uint32_t epoch, From from)
{
#pragma unroll
    for (int i = 0; i < N; i++) try_load(got[i], from(i));
    for (;;) {
        bool missing = false;
#pragma unroll
        for (int i = 0; i < N; i++) missing = missing || !has_come(got[i], epoch);
        if (!missing) break;
#pragma unroll
        for (int i = 0; i < N; i++)
            // perhaps never false: packets mostly come together
            if (!has_come(got[i], epoch)) try_load(got[i], from(i));
    }
}

// Thousands of threads that poll for packets which cannot have come delay those packets, and the weights.
__device__ __forceinline__ void delay_polling(int cycles)
{
    const unsigned begin = clock();
    // perhaps never skipped: time goes on; perhaps never one turn: it may; perhaps never several turns: or run
    while (unsigned(clock()) - begin < unsigned(cycles)) continue;
}

}  // namespace llama
