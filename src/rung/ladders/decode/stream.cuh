// Rows of weights that stream through shared memory, so that they can be in flight long before registers are free for them, and
// the norm before their product. With BULK a producer warp has the copy engine load rows, with at most FLIGHT KB in flight:
// requests in the memory queues delay all other loads. Without it, or on a GPU without such an engine, every lane copies the
// pieces that it will need itself.
#pragma once
#include "few_sequences.cuh"

namespace decode {

#if __CUDA_ARCH__ >= 900
constexpr bool ENGINE = BULK;
#else
constexpr bool ENGINE = false;
#endif

// The code before this call must not depend on the previous kernel's output. With `early`, the next kernel may start even before
// this one's input is ready: it too prefetches its weights and waits.
__device__ __forceinline__ void wait_for_input(bool early)
{
    if (early) pdl_launch_dependents();
    pdl_wait();
    if (!early) pdl_launch_dependents();
}

// Prefetches weights into L2; called by one thread.
template <class W>
__device__ __forceinline__ void prefetch(const W* from, size_t count)
{
#if __CUDA_ARCH__ >= 900
    const unsigned bytes = unsigned(count * sizeof(W) / 16 * 16);
    if (bytes > 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// Prefetches this block's share of a matrix for a kernel that has not started yet.
template <class W>
__device__ __forceinline__ void prefetch_share(const W* matrix, size_t count)
{
    constexpr size_t EACH = 16 / sizeof(W);
    const size_t blocks = size_t(gridDim.x) * gridDim.y * gridDim.z;
    const size_t block = (size_t(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const size_t pieces = count / EACH, first = pieces * block / blocks, last = pieces * (block + 1) / blocks;
    prefetch(matrix + first * EACH, (last - first) * EACH);
}

// Sums of ROWS numbers over a warp, in as few shuffles as possible: row r ends up in the lanes from r * SPAN.
template <int ROWS>
struct Together
{
    static constexpr int PADDED = ROWS <= 1 ? 1 : ROWS <= 2 ? 2 : 4;
    static constexpr int SPAN = WARP_SIZE / PADDED;
    static_assert(ROWS <= 4, "at most four rows at once");

    static __device__ __forceinline__ float sum(const float (&own)[ROWS], int lane)
    {
        float v[4] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++) v[r] = own[r];
        if (PADDED == 4) {
            const bool upper = lane & 16;
            const float a = upper ? v[2] : v[0], b = upper ? v[3] : v[1];
            const float c = upper ? v[0] : v[2], d = upper ? v[1] : v[3];
            v[0] = a + __shfl_xor_sync(ALL_LANES, c, 16);
            v[1] = b + __shfl_xor_sync(ALL_LANES, d, 16);
        }
        if (PADDED >= 2) {
            const bool upper = lane & SPAN;
            const float keep = upper ? v[1] : v[0], give = upper ? v[0] : v[1];
            v[0] = keep + __shfl_xor_sync(ALL_LANES, give, SPAN);
        }
#pragma unroll
        for (int offset = SPAN / 2; offset > 0; offset /= 2) v[0] += __shfl_xor_sync(ALL_LANES, v[0], offset);
        return v[0];
    }
};

// Bias and scale of the block's rows, prefetched while the kernel's input is still being computed: at the end, each load would
// cost a memory latency.
template <int THREADS>
struct Ends
{
    float2* kept;  // (bias, scale) of each row of the block

    template <class W>
    __device__ __forceinline__ void fetch(Matrix<W> matrix, const Real* bias, int first, int rows)
    {
        for (int i = threadIdx.x; i < rows; i += THREADS)
            kept[i] = make_float2(bias ? to_float(bias[first + i]) : 0.0f, matrix.row_scale(first + i));
    }

    __device__ __forceinline__ float apply(int row, float sum) const { return sum * kept[row].y + kept[row].x; }
};

// A barrier for the consumer threads only.
template <int THREADS>
__device__ __forceinline__ void sync_computing()
{
#if __CUDA_ARCH__ >= 900
    if (ENGINE) {
        sync_first<THREADS>();
        return;
    }
#endif
    __syncthreads();
}

// A block's rows of a matrix with K columns, assigned to its warps in groups of ROWS; WARPS_PER_ROW neighbouring warps share a
// row. Each warp has a ring of SLOTS such groups.
template <class W, int K, int WARPS_PER_ROW, int ROWS, int SLOTS, int THREADS>
struct WeightStream
{
    static constexpr int SLICE = K / WARPS_PER_ROW, WARPS = THREADS / 32, GROUPS = WARPS / WARPS_PER_ROW;
    using RowSlice = Row<W, SLICE>;
    using At = Spread<W, SLICE>;
    static constexpr int SLOT = ROWS * RowSlice::COUNT;  // in pieces of 16 bytes

    const W* weight;
    uint4* ring;               // of the whole block
    uint64_t *arrived, *left;  // one full and one empty barrier per slot and warp
    int begin, end, next, lane, warp;

    // False for the threads of the producer warp, which have finished and called `after`. Without a copy engine that warp only
    // takes part in the block's `meetings` barriers.
    template <class After>
    __device__ __forceinline__ bool start(const W* matrix, int rows, uint4* shared, int meetings, After after)
    {
        __shared__ uint64_t barriers[2 * WARPS * SLOTS];
        const int share = ceil_div(rows, int(gridDim.x));
        lane = lane_id(), warp = warp_id(), arrived = barriers, left = barriers + WARPS * SLOTS;
        begin = min(int(blockIdx.x) * share, rows), end = min(begin + share, rows);
        weight = matrix, ring = shared;
        if (ENGINE) {
            const bool copying = warp == WARPS;
            if (copying) set_up();
            __syncthreads();
            if (!copying) return true;
            copy();
            if (lane == 0) after();
            return false;
        }
        if (warp == WARPS) {
            for (int i = 0; i < meetings; i++) __syncthreads();
            return false;
        }
        next = row_of(warp, 0);
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) request(slot);
        return true;
    }

    __device__ __forceinline__ int row_of(int w, int step) const { return begin + (step * GROUPS + w / WARPS_PER_ROW) * ROWS; }
    __device__ __forceinline__ uint4* slot_of(int w, int slot) const { return ring + (w * SLOTS + slot) * SLOT; }

    // The vectors follow the ring, and the ends of the rows follow those.
    static __device__ __forceinline__ float4* behind(uint4* shared)
    {
        return reinterpret_cast<float4*>(shared + WARPS * SLOTS * SLOT);
    }
    static __device__ __forceinline__ Ends<THREADS> ends(uint4* shared)
    {
        return {reinterpret_cast<float2*>(behind(shared) + B * WARPS_PER_ROW * At::FLOAT4S)};
    }

#if __CUDA_ARCH__ >= 900
    __device__ __forceinline__ void set_up() const
    {
        // perhaps never several turns: few warps have few barriers
        for (int i = lane; i < 2 * WARPS * SLOTS; i += WARP_SIZE) byte_barrier_init(arrived + i);
    }

    // Requests all rows of the block in the order of their use: one lane for each consumer warp.
    __device__ __forceinline__ void copy() const
    {
        constexpr unsigned BYTES = SLICE * sizeof(W);
        constexpr int STEP_BYTES = WARPS * ROWS * BYTES, WANTED = (FLIGHT * 1024 + STEP_BYTES / 2) / STEP_BYTES;
        constexpr int DEPTH = WANTED < 1 ? 1 : WANTED < SLOTS ? WANTED : SLOTS;  // slots of a ring in flight
        static_assert(WARPS <= WARP_SIZE, "one lane of the copying warp for each computing warp");
        if (lane >= WARPS) return;
        for (int step = 0, row = row_of(lane, 0); row < end; step++, row += GROUPS * ROWS) {
            const int slot = step % SLOTS, late = step - DEPTH, count = min(ROWS, end - row);
            uint64_t* barrier = arrived + lane * SLOTS;
            if (step == SLOTS && REST) prefetch_rest();
            if (late >= 0) byte_barrier_wait(barrier + late % SLOTS, late / SLOTS % 2);
            if (step >= SLOTS) byte_barrier_wait(left + lane * SLOTS + slot, (step / SLOTS - 1) % 2);
            byte_barrier_expect(barrier + slot, count * BYTES);
            const W* from = weight + size_t(row) * K + lane % WARPS_PER_ROW * SLICE;
            if (WARPS_PER_ROW == 1) {  // rows are contiguous
                bulk_copy(slot_of(lane, slot), from, count * BYTES, barrier + slot);
            } else {
                for (int r = 0; r < count; r++)
                    bulk_copy(slot_of(lane, slot) + r * RowSlice::COUNT, from + size_t(r) * K, BYTES, barrier + slot);
            }
        }
    }

    // Rows that do not fit into the rings are prefetched into L2, but not before the previous kernel has all its data.
    __device__ __forceinline__ void prefetch_rest() const
    {
        pdl_wait();
        const int first = row_of(0, SLOTS);
        if (lane == 0 && first < end) prefetch(weight + size_t(first) * K, size_t(end - first) * K);
    }

    __device__ __forceinline__ void await(int slot, int lap) const
    {
        if (ENGINE)
            byte_barrier_wait(arrived + warp * SLOTS + slot, lap % 2);
        else
            cp_async_wait<SLOTS - 1>();
    }

    __device__ __forceinline__ void release(int slot)
    {
        if (ENGINE) {
            __syncwarp();  // all lanes have read the slot, which may now be refilled
            if (lane == 0) byte_barrier_arrive(left + warp * SLOTS + slot);
        } else {
            request(slot);
        }
    }
#else
    __device__ __forceinline__ void set_up() const {}
    __device__ __forceinline__ void copy() const {}
    __device__ __forceinline__ void await(int, int) const { cp_async_wait<SLOTS - 1>(); }
    __device__ __forceinline__ void release(int slot) { request(slot); }
#endif

    __device__ __forceinline__ void request(int slot)
    {
        const W* from = weight + warp % WARPS_PER_ROW * SLICE;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (next + r < end)
#pragma unroll
                for (int i = 0; i < RowSlice::PIECES; i++)
                    if (RowSlice::inside(i, lane)) {
                        const int piece = i * WARP_SIZE + lane;
                        cp_async_16(slot_of(warp, slot) + r * RowSlice::COUNT + piece,
                                    reinterpret_cast<const uint4*>(from + size_t(next + r) * K) + piece);
                    }
        cp_async_commit();
        next += GROUPS * ROWS;
    }

    // `use(row, b, sum)` is called by one lane for each of the warp's rows and sequences.
    template <class Use>
    __device__ __forceinline__ void run(const float4* xs, Use use)
    {
        const float4* mine = xs + warp % WARPS_PER_ROW * At::FLOAT4S;
        float4 x[RowSlice::PIECES][At::GROUPS];
        if (B == 1) read(x, mine);
        int slot = 0, lap = 0;
        for (int row = row_of(warp, 0); row < end; row += GROUPS * ROWS) {
            await(slot, lap);
            Row<W, SLICE> rows[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int i = 0; i < RowSlice::PIECES; i++) {
                    rows[r].bits[i] = zero_bits();
                    if (RowSlice::inside(i, lane) && row + r < end)
                        rows[r].bits[i] = slot_of(warp, slot)[r * RowSlice::COUNT + i * WARP_SIZE + lane];
                }
            release(slot);
            if (++slot == SLOTS) slot = 0, lap++;
#pragma unroll
            for (int b = 0; b < B; b++) {
                if (B > 1) read(x, mine + b * WARPS_PER_ROW * At::FLOAT4S);
                float sums[ROWS];
#pragma unroll
                for (int r = 0; r < ROWS; r++) sums[r] = product(rows[r], x);
                const float sum = Together<ROWS>::sum(sums, lane);
                const int r = lane / Together<ROWS>::SPAN;
                if (lane % Together<ROWS>::SPAN == 0 && r < ROWS && row + r < end) use(row + r, b, sum);
            }
        }
    }

    __device__ __forceinline__ void read(float4 (&x)[RowSlice::PIECES][At::GROUPS], const float4* from) const
    {
#pragma unroll
        for (int i = 0; i < RowSlice::PIECES; i++)
#pragma unroll
            for (int j = 0; j < At::GROUPS; j++)
                x[i][j] =
                    RowSlice::inside(i, lane) ? from[j * At::STRIDE + i * WARP_SIZE + lane] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }

    static __device__ __forceinline__ float product(const Row<W, SLICE>& row, const float4 (&x)[RowSlice::PIECES][At::GROUPS])
    {
        float even = 0.0f, odd = 0.0f;
#pragma unroll
        for (int i = 0; i < RowSlice::PIECES; i++)
#pragma unroll
            for (int j = 0; j < At::GROUPS; j++) {
                even += row.at(i, 4 * j) * x[i][j].x;
                odd += row.at(i, 4 * j + 1) * x[i][j].y;
                even += row.at(i, 4 * j + 2) * x[i][j].z;
                odd += row.at(i, 4 * j + 3) * x[i][j].w;
            }
        return even + odd;
    }
};

}  // namespace decode
