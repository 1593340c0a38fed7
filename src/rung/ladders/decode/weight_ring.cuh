// All weights of a step, one after the other through a ring in shared memory: one thread of the block asks the copy engine
// for row after row of the block's share, whatever the others are at, and waits only for room.
#pragma once
#include "mail.cuh"
#include "stopwatch.cuh"

namespace decode {

// Weights of eight bits are whole numbers with a scale for each row; half precision holds them exactly.
#ifdef EIGHT_BITS
using Weight = int8_t;
using Factor = __half;  // of the vector that meets the weights
#else
using Weight = Real;
using Factor = Real;
#endif
constexpr bool SCALED = sizeof(Weight) == 1;
constexpr bool TWO_TERM_TF32 = sizeof(Factor) == 4;  // tensor cores take ten bits of a float's fraction, and the next ten beside them
constexpr int ROW_BYTES = C * sizeof(Weight), SLOT_BYTES = C * sizeof(Real);  // a slot has room for a vector of C
constexpr int ROWS_OF_SLOT = sizeof(Real) / sizeof(Weight);

constexpr int THREADS = STEP_WARPS * WARP_SIZE;         // that compute
constexpr int CHUNK = 64 / sizeof(Weight);              // columns of 64 bytes: one step of the tensor cores, or two
constexpr int STEPS = CHUNK * sizeof(Factor) / 64;
constexpr int CHUNKS = C / CHUNK, PARTS = F / C;        // of a row of C; rows of F come in parts of C
constexpr int CHUNKS_PER_WARP = CHUNKS / STEP_WARPS, WARPS_WITH_EXTRA = CHUNKS % STEP_WARPS, MAX_CHUNKS = CHUNKS_PER_WARP + (WARPS_WITH_EXTRA > 0);  // chunks of every warp, of some
constexpr int PIECES = SLOT_BYTES % 128 == 64 ? SLOT_BYTES / 16 : SLOT_BYTES / 16 + 4;  // of a slot: neighbouring rows lie half of all banks apart
constexpr bool ROOMY = STEP_WARPS <= 7;                 // with the copying one, two warps have a quarter of the registers
constexpr int TILES = MAX_CHUNKS <= (ROOMY ? 4 : SCALED ? 2 : 3) ? 3 : 2;  // of eight rows, as many as registers have room for
constexpr int UNIT = 8 * TILES, UNITS = 128;            // rows released together; such units on their way
constexpr int KEY_SLOTS = 10;                           // of a unit of keys and values, for either
constexpr int BATCH = 96;                               // rows between two barriers
static_assert(C % CHUNK == 0 && F % C == 0 && B == 1, "one sequence, whole chunks, whole parts");
static_assert(SLOTS >= UNIT && SLOTS >= 2 * KEY_SLOTS && SLOTS < UNITS && BATCH % UNIT == 0, "the ring must hold a unit, and no more slots than units");

// Who says that a warp has read its part: one lane, or all, which racecheck can follow: it does not see that __syncwarp stands
// between a lane's reading and another lane's arrival.
#ifdef RUNG_SANITIZED
constexpr int ARRIVING = WARP_SIZE;
#else
constexpr int ARRIVING = 1;
#endif

// What the step's time is put down to, in the order of [inside]: rows, which are the phases and these, the last of them the
// copying thread's, and columns.
enum Phase { QKV, PROJ, FC, FC2, PHASES, HEAD = PHASES };
enum Account { ATTENTION = HEAD + 1, COPIES, ROWS };
enum Cost { MAIL, NORM, WEIGHTS, PRODUCTS, SENDING, WAIT_FREE_SLOT, COLUMNS };
using Watch = Stopwatch<ROWS, COLUMNS>;

// Slots of so many rows.
__device__ __forceinline__ int slots_of(int rows) { return ceil_div(rows, ROWS_OF_SLOT); }

// What a phase needs of the model: a block's rows of a matrix, their biases, and gain and shift of a layer norm before it.
struct Weights
{
    const Weight* matrix;
    const Real *bias, *gain, *shift;  // these may be null
    int begin, rows, parts;

    static constexpr int EXTRAS = 3;  // the vectors, each in a slot of its own; that of biases begins at 16 bytes

    __device__ __forceinline__ Weights(const Weight* all, int2 share, int parts_, const Real* biases, const Real* gains,
                                       const Real* shifts)
        : begin(share.x), rows(share.y), parts(parts_), gain(gains), shift(shifts)
    {
        matrix = all + size_t(begin) * parts * C;
        bias = biases ? biases + begin : nullptr;
    }
    // What the computing threads need to know of one.
    __device__ __forceinline__ Weights(int2 share, int parts_)
        : matrix(nullptr), bias(nullptr), gain(nullptr), shift(nullptr), begin(share.x), rows(share.y), parts(parts_)
    {
    }
    // From a multiple of 16 bytes to the block's biases: all operands begin at one, and so do all layers.
    __device__ __forceinline__ int skipped() const { return begin % VEC; }
    __device__ __forceinline__ const Weight* row(int r, int part) const { return matrix + (size_t(r) * parts + part) * C; }
};

// For the threads that compute; the copying warp goes its own way.
__device__ __forceinline__ void sync_computing()
{
#ifdef RUNG_EMULATOR
    __syncthreads();
#else
    sync_first<THREADS>();
#endif
}

// Places in shared memory. The hardware's own addresses are kept in registers: the compiler would compute those of arrays
// again wherever they are used.
#ifdef RUNG_EMULATOR
using Address = const char*;

__device__ __forceinline__ Address smem_address(const void* of) { return static_cast<Address>(of); }
template <class T>
__device__ __forceinline__ T at(Address address) { return *reinterpret_cast<const T*>(address); }
__device__ __forceinline__ void put(Address address, float x) { *reinterpret_cast<float*>(const_cast<char*>(address)) = x; }
#else
using Address = uint32_t;

__device__ __forceinline__ Address smem_address(const void* of) { return Address(opaque(int(shared_address(of)))); }
template <class T>
__device__ __forceinline__ T at(Address address);
template <>
__device__ __forceinline__ uint4 at<uint4>(Address address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}
template <>
__device__ __forceinline__ uint32_t at<uint32_t>(Address address)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}
__device__ __forceinline__ void put(Address address, float x)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}

__device__ __forceinline__ void wait_at(Address barrier, unsigned parity)
{
    asm volatile("{\n\t.reg .pred done;\nagain:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra again;\n\t}" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void arrive_at(Address barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// As bulk_copy, for addresses that are known already.
__device__ __forceinline__ void bulk_copy_at(Address to, const void* from, unsigned bytes, Address barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// Whether this is the lane that was chosen. For code that one lane runs the compiler keeps addresses in the registers that
// the copy engine reads; after a comparison of lanes it makes a loop over all lanes of each copy.
__device__ __forceinline__ bool elected()
{
    uint32_t chosen;
    asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(chosen));
    return chosen != 0;
}
#endif

struct Ring
{
    uint4* slots;
    uint64_t *arrived, *left;  // of units
    Address slots_at, barriers_at;
    int slot;  // the next one
    unsigned unit;
    Watch watch;

    __device__ __forceinline__ uint4* at(int ahead) const
    {
        const int number = slot + ahead;
        return slots + (number >= SLOTS ? number - SLOTS : number) * PIECES;
    }
    __device__ __forceinline__ Address address(int ahead) const
    {
        const int number = slot + ahead;
        return slots_at + (number >= SLOTS ? number - SLOTS : number) * (PIECES * 16);
    }
    __device__ __forceinline__ void go_on(int count)
    {
        slot += count;
        if (slot >= SLOTS) slot -= SLOTS;
    }

#ifndef RUNG_EMULATOR
    // By the whole copying warp, before anybody waits.
    __device__ __forceinline__ void set_up(int lane) const
    {
        for (int i = lane; i < UNITS; i += WARP_SIZE) byte_barrier_init(arrived + i), byte_barrier_init(left + i, STEP_WARPS * ARRIVING);
    }
#endif

    __device__ __forceinline__ void await(unsigned number)
    {
#ifndef RUNG_EMULATOR
        const int before = watch.running();
        watch.start(WEIGHTS);
        wait_at(barriers_at + number % UNITS * 8, number / UNITS % 2);
        watch.go_on(before);
#endif
    }

    // By every warp: it needs the next unit, of so many slots, no more.
    __device__ __forceinline__ void release(int count)
    {
#ifndef RUNG_EMULATOR
        __syncwarp();
        if (lane_id() < ARRIVING) arrive_at(barriers_at + (UNITS + unit % UNITS) * 8);
#endif
        go_on(count), unit++;
    }

    // The vectors of the next unit, which has arrived.
    __device__ __forceinline__ const Real* gain(const Weights& w) const { return extra(w.gain, 0, 0); }
    __device__ __forceinline__ const Real* shift(const Weights& w) const { return extra(w.shift, 1, 0); }
    __device__ __forceinline__ const Real* bias(const Weights& w) const { return extra(w.bias, 2, w.skipped()); }

    __device__ __forceinline__ const Real* extra(const Real* from, int i, int skipped) const
    {
#ifdef RUNG_EMULATOR
        return from;
#else
        return reinterpret_cast<const Real*>(at(i)) + skipped;
#endif
    }
};

#ifndef RUNG_EMULATOR
// What the copying thread knows: slots known to be free, units known to be released, and how many slots each unit took.
struct Copier
{
    Ring ring;
    int* sizes;  // of units under way
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
        rows(from, count / ROWS_OF_SLOT, parts * C * ROWS_OF_SLOT, C * ROWS_OF_SLOT);  // those of a slot are neighbours
        if (ROWS_OF_SLOT > 1 && count % ROWS_OF_SLOT > 0) rows(from + (count - 1) * C, 1, 0, C);
    }

    // Two rows that are no neighbours into each slot.
    template <class T>
    __device__ __forceinline__ void copy_pairs(const T* from, int count, int apart)
    {
#pragma unroll 1
        for (int r = 0; r < count; r += 2, from += 2 * apart) {
            make_room();
            const Address to = ring.address(0), barrier = ring.barriers_at + (ring.unit - 1) % UNITS * 8;
            keep_pace(), bulk_copy_at(to, from, ROW_BYTES, barrier);
            if (r + 1 < count) bulk_copy_at(to + ROW_BYTES, from + apart, ROW_BYTES, barrier);
            ring.go_on(1), free--;
        }
    }

    // Keys of a head, and their values behind them: in each slot as many as are as long as a row.
    __device__ __forceinline__ void copy_keys(const Real* keys, const Real* values, int count)
    {
        begin(2 * ceil_div(count, NH), 2 * count * HS * sizeof(Real));
        copy_heads(keys, count), copy_heads(values, count);
    }

    __device__ __forceinline__ void copy_heads(const Real* from, int count)
    {
        rows(from, count / NH, C, C);
        if (count % NH > 0) one(from + count / NH * C, count % NH * HS);
    }

    // No more than FLIGHT units are under way: what waits in the memory's queues delays everybody's loads.
    __device__ __forceinline__ void begin(int count, int bytes)
    {
        if (ring.unit >= FLIGHT) ring.await(ring.unit - FLIGHT);
        sizes[ring.unit % UNITS] = count;
        byte_barrier_expect(ring.arrived + ring.unit % UNITS, bytes);
        ring.unit++;
    }

    __device__ __forceinline__ void make_room()
    {
        while (free == 0) {
            ring.watch.start(WAIT_FREE_SLOT);
            byte_barrier_wait(ring.left + released % UNITS, released / UNITS % 2);
            ring.watch.start(SENDING);
            free += sizes[released++ % UNITS];
        }
    }

    // A slot of the unit that has begun, perhaps an empty one.
    __device__ __forceinline__ void one(const Real* from, int numbers)
    {
        make_room();
        if (numbers > 0) bulk_copy(ring.at(0), from, numbers * sizeof(Real), ring.arrived + (ring.unit - 1) % UNITS);
        ring.go_on(1), free--;
    }

    // No more than PACE bytes a cycle: what is asked for faster waits in the memory's queues, and so does everybody's mail.
    __device__ __forceinline__ void keep_pace()
    {
        if (PACE == 0) return;
        constexpr unsigned CYCLES = SLOT_BYTES / (PACE > 0 ? PACE : 1);
        while (unsigned(clock()) - last < CYCLES) continue;
        last = clock();
    }

    // So many numbers into each of as many slots, `apart` numbers from one another.
    template <class T>
    __device__ __forceinline__ void rows(const T* from, int count, int apart, int numbers)
    {
        const unsigned bytes = numbers * sizeof(T);
        const uint32_t barrier = ring.barriers_at + (ring.unit - 1) % UNITS * 8;
#pragma unroll 1
        while (count > 0) {
            make_room();
            const int some = min(min(count, free), SLOTS - ring.slot);  // without a gap
            uint32_t to = ring.slots_at + ring.slot * (PIECES * 16);
#pragma unroll 4
            for (int r = 0; r < some; r++, to += PIECES * 16, from += apart) keep_pace(), bulk_copy_at(to, from, bytes, barrier);
            ring.go_on(some), free -= some, count -= some;
        }
    }
};
#endif

}  // namespace decode
