// How the blocks of one kernel hand numbers to one another without a barrier: twelve bytes and the number of the epoch in
// which they were sent travel in one access of sixteen. Whoever finds the epoch has the bytes with it, after one
// trip to L2 instead of one for a flag and one for what it stands for.
#pragma once
#include "decode.cuh"
#ifdef RUNG_EMULATOR
#include <assert.h>
#include <cooperative_groups.h>
#endif

namespace decode {

struct Parcel
{
    uint32_t word[3], epoch;
};

__device__ __forceinline__ void send(Parcel* to, uint32_t a, uint32_t b, uint32_t c, uint32_t epoch)
{
#ifdef RUNG_EMULATOR
    *to = {{a, b, c}, epoch};
#else
    asm volatile("{\n\t.reg .b64 lo, hi;\n\t.reg .b128 all;\n\tmov.b64 lo, {%1, %2};\n\tmov.b64 hi, {%3, %4};\n\t"
                 "mov.b128 all, {lo, hi};\n\tst.relaxed.gpu.global.b128 [%0], all;\n\t}"
                 ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(epoch) : "memory");
#endif
}

__device__ __forceinline__ Parcel look(const Parcel* at)
{
#ifdef RUNG_EMULATOR
    return *at;
#else
    Parcel p;
    asm volatile("{\n\t.reg .b64 lo, hi;\n\t.reg .b128 all;\n\tld.relaxed.gpu.global.b128 all, [%4];\n\t"
                 "mov.b128 {lo, hi}, all;\n\tmov.b64 {%0, %1}, lo;\n\tmov.b64 {%2, %3}, hi;\n\t}"
                 : "=r"(p.word[0]), "=r"(p.word[1]), "=r"(p.word[2]), "=r"(p.epoch) : "l"(at) : "memory");
    return p;
#endif
}

// The same where it is wanted; what is not is taken for one of this epoch.
__device__ __forceinline__ Parcel look_if(bool wanted, const Parcel* at, uint32_t epoch)
{
#ifdef RUNG_EMULATOR
    return wanted ? *at : Parcel{{0, 0, 0}, epoch};
#else
    Parcel p;
    asm volatile("{\n\t.reg .pred wanted;\n\t.reg .b64 lo, hi;\n\t.reg .b128 all;\n\tsetp.ne.b32 wanted, %5, 0;\n\t"
                 "mov.b64 lo, 0;\n\tmov.b64 hi, {0, %6};\n\tmov.b128 all, {lo, hi};\n\t"
                 "@wanted ld.relaxed.gpu.global.b128 all, [%4];\n\tmov.b128 {lo, hi}, all;\n\t"
                 "mov.b64 {%0, %1}, lo;\n\tmov.b64 {%2, %3}, hi;\n\t}"
                 : "=r"(p.word[0]), "=r"(p.word[1]), "=r"(p.word[2]), "=r"(p.epoch)
                 : "l"(at), "r"(int(wanted)), "r"(epoch) : "memory");
    return p;
#endif
}

// Who asks for what cannot be there yet asks again, and thousands of such questions stand in the way of the parcels, and of
// the weights. So nobody asks for as many cycles as mail takes anyway.
__device__ __forceinline__ void delay_polling(int cycles)
{
#ifndef RUNG_EMULATOR
    const unsigned begin = clock();
    while (unsigned(clock()) - begin < unsigned(cycles)) continue;
#endif
}

// Parcel i of N lies at from(i). All that are wanted are asked for before the first is looked at, and asked for again until
// they are there.
template <int N, class From, class Wanted>
__device__ __forceinline__ void receive(Parcel (&got)[N], uint32_t epoch, From from, Wanted wanted)
{
#pragma unroll
    for (int i = 0; i < N; i++) got[i] = look_if(wanted(i), from(i), epoch);
#ifdef RUNG_EMULATOR
    for (int i = 0; i < N; i++) assert(got[i].epoch == epoch);
#else
    for (;;) {
        uint32_t missing = 0;
#pragma unroll
        for (int i = 0; i < N; i++) missing |= got[i].epoch ^ epoch;
        if (missing == 0) break;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (got[i].epoch != epoch) got[i] = look(from(i));
    }
#endif
}

template <int N, class From>
__device__ __forceinline__ void receive(Parcel (&got)[N], uint32_t epoch, From from)
{
    receive(got, epoch, from, [](int) { return true; });
}

// On a GPU the parcels are all that anybody waits for. The emulator's blocks take turns and need to be told when.
__device__ __forceinline__ void everyone_has_sent()
{
#ifdef RUNG_EMULATOR
    cooperative_groups::this_grid().sync();
#endif
}

// Whole division of small numbers by one that is known at run time only.
struct Divisor
{
    float inverse;

    __device__ __forceinline__ explicit Divisor(int n) : inverse(1.0f / float(n)) {}
    __device__ __forceinline__ int divide(int x) const { return int((float(x) + 0.5f) * inverse); }
};

// Rows that the blocks share, STEP at a time: the first `longer` blocks have one step more.
template <int STEP>
struct RowPartition
{
    int least, longer;

    __device__ __forceinline__ explicit RowPartition(int rows)
    {
        const int steps = rows / STEP;
        least = steps / int(gridDim.x), longer = steps - least * int(gridDim.x);
    }
    __device__ __forceinline__ int most() const { return STEP * (least + (longer > 0)); }
    __device__ __forceinline__ int begin(int block) const { return STEP * (block * least + min(block, longer)); }
    __device__ __forceinline__ int count(int block) const { return STEP * (least + (block < longer)); }
    __device__ __forceinline__ int owner(int row) const
    {
        const int step = row / STEP, split = longer * (least + 1);
        return step < split ? Divisor(least + 1).divide(step) : longer + Divisor(max(least, 1)).divide(step - split);
    }
};

// A vector whose numbers the blocks make in such block_rows, and send PER to a parcel: (block, parcel).
template <int PER, int STEP = 1>
struct Mailbox
{
    Parcel* mail;
    RowPartition<STEP> share;
    int each;  // parcels of a block

    __device__ __forceinline__ Mailbox(Parcel* at, int rows) : mail(at), share(rows), each(ceil_div(share.most(), PER)) {}

    __device__ __forceinline__ int parcels() const { return each * int(gridDim.x); }
};

// The same number, but the compiler takes it for a new one: else it keeps, for all layers, whatever follows from it.
__device__ __forceinline__ int opaque(int number)
{
#ifndef RUNG_EMULATOR
    asm volatile("" : "+r"(number));
#endif
    return number;
}

// The numbers in a parcel: which is the first, and how many.
struct ParcelSpan
{
    int packed;

    template <int PER, int STEP>
    static __device__ __forceinline__ ParcelSpan of(const Mailbox<PER, STEP>& shared, int parcel)
    {
        const int block = Divisor(shared.each).divide(parcel), skipped = (parcel - block * shared.each) * PER;
        const int left = parcel < shared.parcels() ? shared.share.count(block) - skipped : 0;
        return {(shared.share.begin(block) + skipped) * 8 + max(0, min(PER, left))};
    }
    __device__ __forceinline__ int first() const { return packed >> 3; }
    __device__ __forceinline__ int count() const { return packed & 7; }

    __device__ __forceinline__ ParcelSpan renewed() const { return {opaque(packed)}; }
};

}  // namespace decode
