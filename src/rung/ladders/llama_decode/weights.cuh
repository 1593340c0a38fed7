// The phases of a layer, how blocks and warps divide their rows, and the ring through which a producer warp has the copy engine
// load all weights of a step in the order of their use, whatever the blocks wait for meanwhile.
#pragma once
#include "numbers.cuh"

namespace llama {

enum Phase { QKV, OUT, FC, DOWN, PHASES, HEAD = PHASES };

constexpr int THREADS = 32 * WARPS, GROUP = NH / NKV;
constexpr int PACK = 4 / sizeof(Real);  // numbers in a word
constexpr int PLANES = VEC / 4;         // of a vector in shared memory: a lane's 16 bytes of weights meet one float4 of each
constexpr int QKV_ROWS = (NH + 2 * NKV) * HS, SLOT_VECTORS = SLOT_BYTES / 16;
constexpr int PARTIAL = 1024;  // sums of rows, or of parts of rows, between two barriers
// The lanes that signal that a warp has read its slot: one, or all for racecheck, which does not recognise that __syncwarp orders
// a lane's read before another lane's arrival.
#ifdef RUNG_SANITIZED
constexpr int ARRIVING = WARP_SIZE;
#else
constexpr int ARRIVING = 1;
#endif

__device__ __forceinline__ void sync_computing() { sync_first<THREADS>(); }

template <class T>
__device__ __forceinline__ T of_phase(int phase, T qkv, T out, T fc, T down, T head)
{
    return phase == QKV ? qkv : phase == OUT ? out : phase == FC ? fc : phase == DOWN ? down : head;
}

// A block's rows of a phase's matrix. A unit is what one warp multiplies at a time and what has one slot of the ring: some whole
// rows, or a part of one.
struct Share
{
    int begin, rows, vectors, parts, of_part, together;

    static constexpr int parts_of(int columns) { return ceil_div(columns / VEC, SLOT_VECTORS); }
    static constexpr int rows_together(int rows, int columns)
    {
        // a few rows together read the vector once, if all warps of a usual number of blocks have some
        return columns / VEC * 4 <= SLOT_VECTORS && rows / 132 >= 4 * WARPS   ? 4
               : columns / VEC * 2 <= SLOT_VECTORS && rows / 132 >= 2 * WARPS ? 2
                                                                              : 1;
    }

    // The block's first row of a phase, and how many it has.
    static __device__ __forceinline__ int2 rows_of(int phase)
    {
        const unsigned step = phase == FC ? 2 * PACK : 1, steps = of_phase(phase, QKV_ROWS, C, F / PACK, C, V);
        const unsigned first = steps * blockIdx.x / gridDim.x, end = steps * (blockIdx.x + 1) / gridDim.x;
        return make_int2(int(first * step), int((end - first) * step));
    }

    // `all` has the rows of each phase: divisions take too long to be repeated.
    __device__ __forceinline__ Share(int phase, const int2* all)
    {
        constexpr int Y = NH * HS;
        begin = all[phase].x, rows = all[phase].y;
        vectors = of_phase(phase, C, Y, C, F, C) / VEC;
        parts = of_phase(phase, parts_of(C), parts_of(Y), parts_of(C), parts_of(F), parts_of(C));
        of_part = of_phase(phase, ceil_div(C / VEC, parts_of(C)), ceil_div(Y / VEC, parts_of(Y)), ceil_div(C / VEC, parts_of(C)),
                           ceil_div(F / VEC, parts_of(F)), ceil_div(C / VEC, parts_of(C)));
        together = of_phase(phase, rows_together(QKV_ROWS, C), rows_together(C, Y), rows_together(2 * F, C), rows_together(C, F),
                            rows_together(V, C));
    }
    __device__ __forceinline__ int units() const { return ceil_div(rows, together) * parts; }
    // Vectors of a unit that begins with this row of the block and this part.
    __device__ __forceinline__ int width(int part) const { return min(of_part, vectors - part * of_part); }
};

struct Ring
{
    uint4* slots;
    uint64_t *arrived, *left;
    unsigned unit = 0;  // the first of the phase

    __device__ __forceinline__ explicit Ring(uint4* storage) : slots(storage)
    {
        __shared__ uint64_t barriers[2 * SLOTS];
        arrived = barriers, left = barriers + SLOTS;
    }
    __device__ __forceinline__ void set_up() const
    {
        // perhaps never several turns: a ring may have fewer slots than a block threads
        for (int i = threadIdx.x; i < SLOTS; i += int(blockDim.x))
            byte_barrier_init(arrived + i), byte_barrier_init(left + i, ARRIVING);
    }
    __device__ __forceinline__ const uint4* await(unsigned which) const
    {
        byte_barrier_wait(arrived + which % SLOTS, which / SLOTS % 2);
        return slots + which % SLOTS * SLOT_VECTORS;
    }
    __device__ __forceinline__ void release(unsigned which) const
    {
        __syncwarp();
        if (lane_id() < ARRIVING) byte_barrier_arrive(left + which % SLOTS);
    }

    // By the producer: all units of a phase, at most FLIGHT of them in flight, since requests in the memory queues delay packets.
    __device__ __forceinline__ void copy(const Share& share, const Real* matrix)
    {
        const Real* from = matrix + size_t(share.begin) * share.vectors * VEC;
        for (int row = 0; row < share.rows; row += share.together)
            for (int part = 0; part < share.parts; part++, unit++) {
                const unsigned slot = unit % SLOTS;
                if (unit >= FLIGHT) byte_barrier_wait(arrived + (unit - FLIGHT) % SLOTS, (unit - FLIGHT) / SLOTS % 2);
                if (unit >= SLOTS) byte_barrier_wait(left + slot, (unit / SLOTS - 1) % 2);
                const unsigned bytes = share.width(part) * min(share.together, share.rows - row) * 16;
                byte_barrier_expect(arrived + slot, bytes);
                bulk_copy_once(slots + slot * SLOT_VECTORS, from + (size_t(row) * share.vectors + part * share.of_part) * VEC,
                               bytes, arrived + slot);
            }
    }
};

// A vector in shared memory: the lane's float4s of neighbouring lanes are neighbours.
struct Vector
{
    float4* planes;

    __device__ __forceinline__ float* at(int i, int vectors) const
    {
        return reinterpret_cast<float*>(planes + i % VEC / 4 * vectors + i / VEC) + i % 4;
    }
    __device__ __forceinline__ void set2(int i, int vectors, float a, float b) const
    {
        *reinterpret_cast<float2*>(at(i, vectors)) = make_float2(a, b);
    }
};

// One unit: R rows, each by all lanes.
template <int R>
__device__ __forceinline__ void multiply(const uint4* slot, const Share& share, int part, int rows, const Vector& x, float* sums)
{
    const int width = share.width(part);
    const float4* from = x.planes + part * share.of_part;
    float sum[R] = {};
#pragma unroll 2
    for (int v = lane_id(); v < width; v += WARP_SIZE) {
        uint4 w[R];
#pragma unroll
        for (int r = 0; r < R; r++) w[r] = slot[min(r, rows - 1) * width + v];
#pragma unroll
        for (int p = 0; p < PLANES; p++) {
            const float4 f = from[p * share.vectors + v];
#pragma unroll
            for (int r = 0; r < R; r++)
                sum[r] += number_at(w[r], 4 * p) * f.x + number_at(w[r], 4 * p + 1) * f.y + number_at(w[r], 4 * p + 2) * f.z +
                          number_at(w[r], 4 * p + 3) * f.w;
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        const float whole = warp_sum(sum[r]);
        if (lane_id() == 0 && r < rows) sums[r] = whole;
    }
}

// Rows `first` and following of the block, PARTIAL sums at most: sums[row - first][part].
__device__ __forceinline__ void multiply_rows(const Ring& ring, const Share& share, int first, int count, const Vector& x,
                                              float* sums)
{
    const int units = ceil_div(count, share.together) * share.parts;
    for (int i = warp_id(); i < units; i += WARPS) {
        const unsigned unit = ring.unit + first / share.together * share.parts + i;
        const int row = i / share.parts * share.together, part = i % share.parts, rows = min(share.together, count - row);
        const uint4* slot = ring.await(unit);
        float* to = sums + row * share.parts + part;
        // perhaps never true, perhaps never false: a shape has one number of rows together
        if (share.together == 4)
            multiply<4>(slot, share, part, rows, x, to);
        else if (share.together == 2)  // perhaps never true, perhaps never false: likewise
            multiply<2>(slot, share, part, rows, x, to);
        else
            multiply<1>(slot, share, part, rows, x, to);
        ring.release(unit);
    }
}

}  // namespace llama
