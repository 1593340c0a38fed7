// All weights of a step, in order, through a ring in shared memory: one producer thread of the block has the copy engine load row
// after row of the block's share, independently of the consumers, and waits only for a free slot.
#pragma once
#include "step_types.cuh"

namespace decode {

constexpr int COPY_WARPS = 1;
constexpr int PIECES = SLOT_BYTES % 128 == 64 ? SLOT_BYTES / 16 : SLOT_BYTES / 16 + 4;  // neighbours start 16 banks apart
constexpr int STAGED_PIECES = SLOTS * PIECES;
// The lanes that signal that a warp has read its part: one, or all for racecheck, which does not recognise that __syncwarp orders
// a lane's read before another lane's arrival.
#ifdef RUNG_SANITIZED
constexpr int ARRIVING = WARP_SIZE;
#else
constexpr int ARRIVING = 1;
#endif

__device__ __forceinline__ void wait_at(Address barrier, unsigned parity)
{
    asm volatile("{\n\t.reg .pred done;\nagain:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra again;\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
__device__ __forceinline__ void arrive_at(Address barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

struct WeightSource
{
    struct Copier;
    static constexpr int UNITS = 128;  // in flight at most; a unit's rows are released together

    uint4* slots;
    uint64_t *arrived, *left;  // of units
    Address slots_at, barriers_at;
    int slot = 0;  // the next one
    unsigned unit = 0;
    Watch watch;

    __device__ __forceinline__ WeightSource(uint4* storage, const Watch& stopwatch) : slots(storage), watch(stopwatch)
    {
        __shared__ uint64_t barriers[2 * UNITS];
        arrived = barriers, left = barriers + UNITS;
        slots_at = smem_address(storage), barriers_at = smem_address(barriers);
    }

    __device__ __forceinline__ uint4* at(int ahead) const { return slots + wrapped(slot + ahead) * PIECES; }
    __device__ __forceinline__ Address address(int ahead) const { return slots_at + wrapped(slot + ahead) * (PIECES * 16); }
    static __device__ __forceinline__ int wrapped(int index) { return index >= SLOTS ? index - SLOTS : index; }
    __device__ __forceinline__ void go_on(int count)
    {
        slot += count;
        if (slot >= SLOTS) slot -= SLOTS;
    }

    // Called by the whole producer warp, before any thread waits.
    __device__ __forceinline__ void set_up(bool copying) const
    {
        // perhaps never one turn: there are more units than lanes
        for (int i = lane_id(); copying && i < UNITS; i += WARP_SIZE)
            byte_barrier_init(arrived + i), byte_barrier_init(left + i, STEP_WARPS * ARRIVING);
    }

    // Whether this is the elected lane. After elect.sync the compiler keeps addresses in the uniform registers that the copy
    // engine reads; after a comparison of lane numbers it generates a loop over lanes around each copy.
    static __device__ __forceinline__ bool elected()
    {
        uint32_t chosen;
        asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(chosen));
        return chosen != 0;
    }

    // Waits until a unit's bytes have arrived: the next unit, or one further ahead.
    __device__ __forceinline__ void await(int ahead = 0) { await_unit(unit + ahead); }
    __device__ __forceinline__ void await_unit(unsigned index)
    {
        const int before = watch.running();
        watch.start(WEIGHTS);
        wait_at(barriers_at + index % UNITS * 8, index / UNITS % 2);
        watch.go_on(before);
    }

    // Called by every warp: releases the next unit, which has this many slots.
    __device__ __forceinline__ void release(int count)
    {
        __syncwarp();
        if (lane_id() < ARRIVING) arrive_at(barriers_at + (UNITS + unit % UNITS) * 8);
        go_on(count), unit++;
    }

    // The vectors of the next unit, which has arrived.
    __device__ __forceinline__ const Real* gain(const Weights&) const { return extra(0, 0); }
    __device__ __forceinline__ const Real* shift(const Weights&) const { return extra(1, 0); }
    __device__ __forceinline__ const Real* bias(const Weights& w) const { return extra(2, w.skipped()); }

    __device__ __forceinline__ const Real* extra(int i, int skipped) const
    {
        return reinterpret_cast<const Real*>(at(i)) + skipped;
    }

    // The start of a row of the next unit, or of one `ahead` slots further, and the 16 bytes there.
    __device__ __forceinline__ Address row(const Weights&, int, int, int ahead, int row) const
    {
        return address(ahead + row / ROWS_OF_SLOT) + row % ROWS_OF_SLOT * ROW_BYTES;
    }
    static __device__ __forceinline__ uint4 piece(Address from) { return decode::at<uint4>(from); }
    // 16 bytes of a key of the next unit, or of a value `ahead` slots further.
    __device__ __forceinline__ uint4 key_piece(const Real*, int key, int ahead, int lane) const
    {
        return decode::at<uint4>(address(ahead + key / NH) + key % NH * (HS * int(sizeof(Real))) + lane * 16);
    }
};

static_assert(SLOTS >= UNIT && SLOTS >= 2 * KEY_SLOTS && SLOTS < WeightSource::UNITS,
              "the ring must hold a unit, and no more slots than units");

// The producer thread's state: slots known to be free, units known to be released, and the number of slots of each unit.
struct WeightSource::Copier
{
    WeightSource ring;
    int* sizes;  // of units in flight
    int free = SLOTS;
    unsigned released = 0;
    unsigned last = 0;

    __device__ __forceinline__ void copy(const Weights& w)
    {
        const int biases = w.bias ? ceil_div(w.skipped() + w.rows, VEC) * VEC : 0;
        begin(Weights::EXTRAS, ((w.gain ? 2 * C : 0) + biases) * sizeof(Real));
        one(w.gain, w.gain ? C : 0);
        one(w.shift, w.gain ? C : 0);
        one(w.bias - w.skipped(), biases);
#pragma unroll 1
        for (int row = 0; row < w.rows; row += UNIT)
#pragma unroll 1
            for (int part = 0; part < w.parts; part++) {
                const int count = min(UNIT, w.rows - row);
                begin(slots_of(count), count * ROW_BYTES);
                copy_rows(w.row(row, part), count, w.parts);
            }
    }

    __device__ __forceinline__ void copy_rows(const Weight* from, int count, int parts)
    {
        if (ROWS_OF_SLOT > 1 && parts > 1) return copy_pairs(from, count, parts * C);
        rows(from, count / ROWS_OF_SLOT, parts * C * ROWS_OF_SLOT, C * ROWS_OF_SLOT);  // those of a slot are contiguous
        if (ROWS_OF_SLOT > 1 && count % ROWS_OF_SLOT > 0) rows(from + (count - 1) * C, 1, 0, C);
    }

    // Two non-adjacent rows into each slot.
    template <class T>
    __device__ __forceinline__ void copy_pairs(const T* from, int count, int apart)
    {
#pragma unroll 1
        // perhaps never one turn: most ranges have more than two rows
        for (int r = 0; r < count; r += 2, from += 2 * apart) {
            make_room();
            const Address to = ring.address(0), barrier = ring.barriers_at + (ring.unit - 1) % UNITS * 8;
            keep_pace(), bulk_copy(to, from, ROW_BYTES, barrier);
            if (r + 1 < count) bulk_copy(to + ROW_BYTES, from + apart, ROW_BYTES, barrier);
            ring.go_on(1), free--;
        }
    }

    // Keys of a head, followed by their values: as many per slot as have the length of a row.
    __device__ __forceinline__ void copy_keys(const Real* keys, const Real* values, int count)
    {
        begin(2 * ceil_div(count, NH), 2 * count * HS * sizeof(Real));
        copy_heads(keys, count), copy_heads(values, count);
    }

    __device__ __forceinline__ void copy_heads(const Real* from, int count)
    {
        rows(from, count / NH, C, C);
        // perhaps never true: keys may fill their slots
        if (count % NH > 0) one(from + count / NH * C, count % NH * HS);
    }

    // At most FLIGHT units are in flight: requests in the memory queues delay all other loads.
    __device__ __forceinline__ void begin(int count, int bytes)
    {
        if (ring.unit >= FLIGHT) ring.await_unit(ring.unit - FLIGHT);
        sizes[ring.unit % UNITS] = count;
        byte_barrier_expect(ring.arrived + ring.unit % UNITS, bytes);
        ring.unit++;
    }

    __device__ __forceinline__ void make_room()
    {
        // perhaps never several turns: most units free a slot
        while (free == 0) {
            ring.watch.start(WAIT_FREE_SLOT);
            byte_barrier_wait(ring.left + released % UNITS, released / UNITS % 2);
            ring.watch.start(SENDING);
            free += sizes[released++ % UNITS];
        }
    }

    // One slot of the current unit, perhaps an empty one.
    __device__ __forceinline__ void one(const Real* from, int numbers)
    {
        make_room();
        if (numbers > 0) bulk_copy(ring.at(0), from, numbers * sizeof(Real), ring.arrived + (ring.unit - 1) % UNITS);
        ring.go_on(1), free--;
    }

    // At most PACE bytes per cycle: faster requests wait in the memory queues, and delay all packets.
    __device__ __forceinline__ void keep_pace()
    {
        if (PACE == 0) return;
        constexpr unsigned CYCLES = SLOT_BYTES / (PACE > 0 ? PACE : 1);
        // perhaps never one turn: a slot takes longer; perhaps never several turns: or no time
        while (unsigned(clock()) - last < CYCLES) continue;
        last = clock();
    }

    // Copies `count` slots of this many elements each, `apart` elements from one another.
    template <class T>
    __device__ __forceinline__ void rows(const T* from, int count, int apart, int numbers)
    {
        const unsigned bytes = numbers * sizeof(T);
        const uint32_t barrier = ring.barriers_at + (ring.unit - 1) % UNITS * 8;
#pragma unroll 1
        // perhaps never skipped: most ranges have a row
        while (count > 0) {
            make_room();
            const int some = min(min(count, free), SLOTS - ring.slot);  // contiguous
            uint32_t to = ring.slots_at + ring.slot * (PIECES * 16);
#pragma unroll 4
            for (int r = 0; r < some; r++, to += PIECES * 16, from += apart) keep_pace(), bulk_copy(to, from, bytes, barrier);
            ring.go_on(some), free -= some, count -= some;
        }
    }
};

__device__ __forceinline__ void sync_computing() { sync_first<THREADS>(); }

}  // namespace decode
