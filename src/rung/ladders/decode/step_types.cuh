// Shared by all versions of the one-kernel step: constants of a row that follow from the shape, the phases of a layer with their
// stopwatch cells, and accesses to shared memory.
#pragma once
#include "decode.cuh"
#include "stopwatch.cuh"

namespace decode {

// The element of the vector that weights are multiplied by: half precision holds 8-bit integers exactly.
#ifdef EIGHT_BITS
using Factor = __half;
#else
using Factor = Real;
#endif
constexpr bool SCALED = sizeof(Weight) == 1;
constexpr bool TWO_TERM_TF32 =
    sizeof(Factor) == 4;  // tensor cores use ten bits of a float's fraction; a second term has the next ten
constexpr int ROW_BYTES = C * sizeof(Weight), SLOT_BYTES = C * sizeof(Real);
constexpr int ROWS_OF_SLOT = sizeof(Real) / sizeof(Weight);

constexpr int THREADS = STEP_WARPS * WARP_SIZE;  // that compute
constexpr int CHUNK = 64 / sizeof(Weight);       // columns of 64 bytes: one step of the tensor cores, or two
constexpr int STEPS = CHUNK * sizeof(Factor) / 64;
constexpr int CHUNKS = C / CHUNK, PARTS = F / C;  // chunks in a row of C; rows of F are loaded in parts of C
constexpr int CHUNKS_PER_WARP = CHUNKS / STEP_WARPS, WARPS_WITH_EXTRA = CHUNKS % STEP_WARPS;
constexpr int MAX_CHUNKS = CHUNKS_PER_WARP + (WARPS_WITH_EXTRA > 0);
constexpr bool ROOMY = STEP_WARPS <= 7;  // counting the producer, two warps have a quarter of the registers
constexpr int TILES = MAX_CHUNKS <= (ROOMY ? 4 : SCALED ? 2 : 3) ? 3 : 2;  // tiles of eight rows, as many as fit into registers
constexpr int UNIT = 8 * TILES;                                            // rows that a warp multiplies together
constexpr int KEY_SLOTS = 10;                                              // slots per group of keys, or of values
constexpr int BATCH = 96;                                                  // rows between two barriers
static_assert(F % C == 0, "whole parts");
static_assert(BATCH % UNIT == 0, "a batch is whole units");

// The stopwatch's cells, in the order of [inside]: rows are the phases and these (the last is the producer thread's), and
// columns.
enum Phase { QKV, PROJ, FC, FC2, PHASES, HEAD = PHASES };
enum Account { ATTENTION = HEAD + 1, COPIES, ROWS };
enum Cost { MAIL, NORM, WEIGHTS, PRODUCTS, SENDING, WAIT_FREE_SLOT, COLUMNS };
using Watch = Stopwatch<ROWS, COLUMNS>;

// Slots needed for this many rows.
__device__ __forceinline__ int slots_of(int rows) { return ceil_div(rows, ROWS_OF_SLOT); }

// A phase's part of the model: a block's rows of a matrix, their biases, and gain and shift of the layer norm before it.
struct Weights
{
    const Weight* matrix;
    const Real *bias, *gain, *shift;  // these may be null
    int begin, rows, parts;

    static constexpr int EXTRAS = 3;  // the vectors, each in its own slot; the biases' slot is aligned to 16 bytes

    __device__ __forceinline__ Weights(const Weight* all, int2 share, int parts_, const Real* biases, const Real* gains,
                                       const Real* shifts)
        : begin(share.x), rows(share.y), parts(parts_), gain(gains), shift(shifts)
    {
        matrix = all + size_t(begin) * parts * C;
        bias = biases ? biases + begin : nullptr;
    }
    // What the consumer threads need of a phase.
    __device__ __forceinline__ Weights(int2 share, int parts_)
        : matrix(nullptr), bias(nullptr), gain(nullptr), shift(nullptr), begin(share.x), rows(share.y), parts(parts_)
    {
    }
    // Offset of the block's biases from a multiple of 16 bytes: all operands and all layers start at one.
    __device__ __forceinline__ int skipped() const { return begin % VEC; }
    __device__ __forceinline__ const Weight* row(int r, int part) const { return matrix + (size_t(r) * parts + part) * C; }
};

// The same value, opaque to the compiler: otherwise it keeps derived values in registers for all layers.
__device__ __forceinline__ int opaque(int number)
{
    asm volatile("" : "+r"(number));
    return number;
}

// Addresses in shared memory. They are kept in registers: the compiler would compute addresses of arrays again wherever they are
// used.
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

}  // namespace decode
