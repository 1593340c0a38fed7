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
constexpr bool SPLIT = sizeof(Factor) == 4;  // tensor cores take ten bits of a float's fraction, and the next ten beside them
constexpr int ROW_BYTES = C * sizeof(Weight), SLOT_BYTES = C * sizeof(Real);  // a slot has room for a vector of C
constexpr int ROWS_OF_SLOT = sizeof(Real) / sizeof(Weight);

constexpr int THREADS = STEP_WARPS * WARP_SIZE;         // that compute
constexpr int CHUNK = 64 / sizeof(Weight);              // columns of 64 bytes: one step of the tensor cores, or two
constexpr int STEPS = CHUNK * sizeof(Factor) / 64;
constexpr int CHUNKS = C / CHUNK, PARTS = F / C;        // of a row of C; rows of F come in parts of C
constexpr int ALL = CHUNKS / STEP_WARPS, MORE = CHUNKS % STEP_WARPS, EACH = ALL + (MORE > 0);  // chunks of every warp, of some
constexpr int PIECES = SLOT_BYTES % 128 == 64 ? SLOT_BYTES / 16 : SLOT_BYTES / 16 + 4;  // of a slot: neighbouring rows lie half of all banks apart
constexpr bool ROOMY = STEP_WARPS <= 7;                 // with the copying one, two warps have a quarter of the registers
constexpr int TILES = EACH <= (ROOMY ? 4 : SCALED ? 2 : 3) ? 3 : 2;  // of eight rows, as many as registers have room for
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
enum Cost { MAIL, NORM, WEIGHTS, PRODUCTS, SENDING, ROOM, COLUMNS };
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

__device__ __forceinline__ Address place(const void* of) { return static_cast<Address>(of); }
template <class T>
__device__ __forceinline__ T at(Address address) { return *reinterpret_cast<const T*>(address); }
__device__ __forceinline__ void put(Address address, float x) { *reinterpret_cast<float*>(const_cast<char*>(address)) = x; }
#else
using Address = uint32_t;

__device__ __forceinline__ Address place(const void* of) { return Address(again(int(shared_address(of)))); }
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
            ring.watch.start(ROOM);
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

// ---- products ---------------------------------------------------------------------------------------------------

// Half precision ends at 65504; what would lie beyond stays finite. What is no number stays none.
__device__ __forceinline__ float in_half(float x)
{
    constexpr float MOST = 65504.0f;
    return x > MOST ? MOST : x < -MOST ? -MOST : x;
}
__device__ __forceinline__ float within_range(float x) { return SCALED ? in_half(x) : x; }

template <class T>
__device__ __forceinline__ T nearest(float x, const T*) { return from_float<T>(x); }
__device__ __forceinline__ float nearest(float x, const float*) { return __uint_as_float(to_tf32(x)); }

// A vector in shared memory, and behind it what was left when its numbers were rounded, if that is wanted.
struct Vector
{
    Factor* numbers;
    int left;  // numbers to what was left; 0 if there is nothing

    __device__ __forceinline__ void set(int i, float x) const
    {
        x = within_range(x);
        const Factor near = nearest(x, (const Factor*)nullptr);
        numbers[i] = near, numbers[left + i] = from_float<Factor>(x - to_float(near));
    }
};

// What a warp multiplies its chunks of the rows with. A lane's sixteen bytes of a row, words 0 to 3, are what tensor cores
// take for one step: they see words 0 and 2 as a row, and 1 and 3 as the eighth row below. So a vector needs two columns on
// the right, one for its even words and one for the odd, and of the products the even column's upper row and the odd
// column's lower one count. Columns 0 and 1 are the vector's, 2 and 3 those of what was left of it.
// Sixteen bytes of eight-bit weights become words for two steps.
struct Words
{
    uint32_t even[EACH * STEPS], odd[EACH * STEPS];  // those of the lane's column that meet words 0 or 1, and 2 or 3

    __device__ __forceinline__ void load(const Vector& vector, int part)
    {
        const int g = lane_id() / 4, t = lane_id() % 4;
        const bool wanted = g < (vector.left > 0 ? 4 : 2);
        const Address from = place(vector.numbers) + (g / 2 % 2 * vector.left + part * C) * int(sizeof(Factor)) + (warp_id() * 64 + t * 16) * STEPS + g % 2 * 4;
#pragma unroll
        for (int i = 0; i < EACH * STEPS; i++) {
            even[i] = odd[i] = 0;
            if (wanted && (i / STEPS < ALL || warp_id() < MORE)) {
                const Address word = from + i / STEPS * (STEP_WARPS * 64 * STEPS) + i % STEPS * 16;
                even[i] = at<uint32_t>(word), odd[i] = at<uint32_t>(word + 8);
            }
        }
    }
};

// Four whole numbers of eight bits as halves: a byte b + 128 in the last bits of 1024 is the half 1152 + b.
__device__ __forceinline__ void as_halves(uint32_t bytes, uint32_t& lower, uint32_t& upper)
{
#ifdef RUNG_EMULATOR
    const auto byte = [&](int i) { return float(int8_t(bytes >> 8 * i)); };
    lower = pack2<__half>(byte(0), byte(1)), upper = pack2<__half>(byte(2), byte(3));
#else
    const uint32_t moved = bytes ^ 0x80808080u, least = 0x64806480u;  // 1152 twice
    lower = __byte_perm(moved, 0x64646464u, 0x4140), upper = __byte_perm(moved, 0x64646464u, 0x4342);
    asm("sub.f16x2 %0, %0, %1;" : "+r"(lower) : "r"(least));
    asm("sub.f16x2 %0, %0, %1;" : "+r"(upper) : "r"(least));
#endif
}

// Which of a tile's rows has lane group g. Eight lanes read at once; their two rows must not begin in the same bank, as the
// two of a slot may.
__device__ __forceinline__ int row_of(int g)
{
    constexpr bool SAME_BANK = ROWS_OF_SLOT == 2 && C % 128 == 0;
    return SAME_BANK ? (g & 4) | (g & 1) << 1 | (g >> 1 & 1) : g;
}

// The upper part of a weight, and what it leaves: both meet both parts of the vector.
__device__ __forceinline__ void multiply_split(float (&acc)[2][4], const uint32_t (&words)[4], uint32_t even, uint32_t odd)
{
    uint32_t upper[4], lower[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        upper[k] = to_tf32(__uint_as_float(words[k]));
        lower[k] = __float_as_uint(__uint_as_float(words[k]) - __uint_as_float(upper[k]));
    }
    const uint32_t b[2] = {even, odd};
    mma_m16n8k8_tf32(acc[0], upper, b), mma_m16n8k8_tf32(acc[1], lower, b);
}

__device__ __forceinline__ void multiply_halves(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
#ifndef RUNG_F32
    mma_m16n8k16<Factor>(acc, a, b);
#endif
}

// What a warp has of a tile: eight rows, those beyond the last are the last again.
struct Tile
{
    uint4 bits[EACH];

    __device__ __forceinline__ void load(const Ring& ring, const Weights& w, int ahead, int first, int part, int row, int last)
    {
        row = min(row + row_of(lane_id() / 4), last);
        const int own = warp_id() * 64 + lane_id() % 4 * 16;
#ifdef RUNG_EMULATOR
        const Address from = place(w.row(first + row, part)) + own;
#else
        const Address from = ring.address(ahead + row / ROWS_OF_SLOT) + row % ROWS_OF_SLOT * ROW_BYTES + own;
#endif
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (i < ALL || warp_id() < MORE) bits[i] = at<uint4>(from + i * (STEP_WARPS * 64));
    }

    __device__ __forceinline__ void multiply(float (&acc)[2][4], const Words& x, int i) const
    {
        const uint32_t words[4] = {bits[i].x, bits[i].y, bits[i].z, bits[i].w};
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            uint32_t a[4] = {words[0], words[1], words[2], words[3]};
            if (SPLIT) {
                multiply_split(acc, a, x.even[i], x.odd[i]);
                continue;
            }
            if (SCALED) as_halves(words[2 * j % 4], a[0], a[1]), as_halves(words[(2 * j + 1) % 4], a[2], a[3]);
            const int step = i * STEPS + j;
            const uint32_t b[2] = {x.even[step], x.odd[step]};
            multiply_halves(acc[step % 2], a, b);
        }
    }
};

// The sums of eight rows over the warp's chunks, to where they belong.
__device__ __forceinline__ void put_sums(Address sums, const float (&acc)[2][4])
{
    float sum = (acc[0][0] + acc[1][0]) + (acc[0][3] + acc[1][3]);
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    if (lane_id() % 4 == 0) put(sums + row_of(lane_id() / 4) * 4, sum);
}

// Up to N * 8 rows, the next unit of the ring or its next `w.parts` units.
template <int N>
__device__ __forceinline__ void multiply_rows(Ring& ring, const Weights& w, const Vector& vector, Words& x, Address sums, int first,
                                              int count)
{
    float acc[N][2][4] = {};
#pragma unroll 1
    for (int part = 0; part < w.parts; part++) {
        if (w.parts > 1) x.load(vector, part);
        Tile tiles[N];  // all are asked for before the first is used
        ring.await(ring.unit);
#pragma unroll
        for (int n = 0; n < N; n++) tiles[n].load(ring, w, 0, first, part, n * 8, count - 1);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (i < ALL || warp_id() < MORE)
#pragma unroll
                for (int n = 0; n < N; n++) tiles[n].multiply(acc[n], x, i);
        ring.release(slots_of(count));
    }
#pragma unroll
    for (int n = 0; n < N; n++) put_sums(sums + n * 32, acc[n]);
}

// Up to eight rows in several parts, of which some are asked for together.
__device__ __forceinline__ void multiply_parts(Ring& ring, const Weights& w, const Vector& vector, Address sums, int first, int count)
{
    constexpr int TOGETHER = PARTS % 4 == 0 && TILES == 3 ? 4 : PARTS % 2 == 0 ? 2 : 1;
    float acc[TOGETHER][2][4] = {};
#pragma unroll 1
    for (int part = 0; part < PARTS; part += TOGETHER) {
        Words x[TOGETHER];
        Tile tiles[TOGETHER];
#pragma unroll
        for (int p = 0; p < TOGETHER; p++) x[p].load(vector, part + p);
#pragma unroll
        for (int p = 0; p < TOGETHER; p++) {
            ring.await(ring.unit + p);
            tiles[p].load(ring, w, p * slots_of(count), first, part + p, 0, count - 1);
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (i < ALL || warp_id() < MORE)
#pragma unroll
                for (int p = 0; p < TOGETHER; p++) tiles[p].multiply(acc[p], x[p], i);
#pragma unroll
        for (int p = 0; p < TOGETHER; p++) ring.release(slots_of(count));
    }
#pragma unroll
    for (int p = 1; p < TOGETHER; p++)
#pragma unroll
        for (int i = 0; i < 8; i++) acc[0][i / 4][i % 4] += acc[p][i / 4][i % 4];
    put_sums(sums, acc[0]);
}

// Up to BATCH rows from `first` on: partial[warp][row].
__device__ __forceinline__ void multiply(Ring& ring, const Weights& w, const Vector& vector, float* partial, int first, int rows)
{
    Address sums = place(partial + warp_id() * BATCH);
    Words x;
    if (w.parts == 1) x.load(vector, 0);
#pragma unroll 1
    for (int row = 0; row < rows; row += UNIT, sums += UNIT * 4) {
        const int count = min(UNIT, rows - row);
        if (TILES > 2 && count > 16)
            multiply_rows<TILES>(ring, w, vector, x, sums, first + row, count);
        else if (count > 8)
            multiply_rows<2>(ring, w, vector, x, sums, first + row, count);
        else if (PARTS > 1 && w.parts > 1)
            multiply_parts(ring, w, vector, sums, first + row, count);
        else
            multiply_rows<1>(ring, w, vector, x, sums, first + row, count);
    }
}

// The product of a row, from the parts that the warps have of it.
__device__ __forceinline__ float whole_sum(const float* partial, int row)
{
    float sums[2] = {};
#pragma unroll
    for (int w = 0; w < STEP_WARPS; w++) sums[w % 2] += partial[w * BATCH + row];
    return sums[0] + sums[1];
}

}  // namespace decode
