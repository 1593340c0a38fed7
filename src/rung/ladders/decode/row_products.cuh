// Rows of weights that have come through the ring, times a vector in shared memory, by tensor cores: a warp has the same
// columns of all rows.
#pragma once
#include "weight_ring.cuh"

namespace decode {

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
    uint32_t even[MAX_CHUNKS * STEPS], odd[MAX_CHUNKS * STEPS];  // those of the lane's column that meet words 0 or 1, and 2 or 3

    __device__ __forceinline__ void load(const Vector& vector, int part)
    {
        const int g = lane_id() / 4, t = lane_id() % 4;
        const bool wanted = g < (vector.left > 0 ? 4 : 2);
        const Address from = smem_address(vector.numbers) + (g / 2 % 2 * vector.left + part * C) * int(sizeof(Factor)) + (warp_id() * 64 + t * 16) * STEPS + g % 2 * 4;
#pragma unroll
        for (int i = 0; i < MAX_CHUNKS * STEPS; i++) {
            even[i] = odd[i] = 0;
            if (wanted && (i / STEPS < CHUNKS_PER_WARP || warp_id() < WARPS_WITH_EXTRA)) {
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
__device__ __forceinline__ void multiply_two_term(float (&acc)[2][4], const uint32_t (&words)[4], uint32_t even, uint32_t odd)
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
    uint4 bits[MAX_CHUNKS];

    __device__ __forceinline__ void load(const Ring& ring, const Weights& w, int ahead, int first, int part, int row, int last)
    {
        row = min(row + row_of(lane_id() / 4), last);
        const int own = warp_id() * 64 + lane_id() % 4 * 16;
#ifdef RUNG_EMULATOR
        const Address from = smem_address(w.row(first + row, part)) + own;
#else
        const Address from = ring.address(ahead + row / ROWS_OF_SLOT) + row % ROWS_OF_SLOT * ROW_BYTES + own;
#endif
#pragma unroll
        for (int i = 0; i < MAX_CHUNKS; i++)
            if (i < CHUNKS_PER_WARP || warp_id() < WARPS_WITH_EXTRA) bits[i] = at<uint4>(from + i * (STEP_WARPS * 64));
    }

    __device__ __forceinline__ void multiply(float (&acc)[2][4], const Words& x, int i) const
    {
        const uint32_t words[4] = {bits[i].x, bits[i].y, bits[i].z, bits[i].w};
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            uint32_t a[4] = {words[0], words[1], words[2], words[3]};
            if (TWO_TERM_TF32) {
                multiply_two_term(acc, a, x.even[i], x.odd[i]);
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
        for (int i = 0; i < MAX_CHUNKS; i++)
            if (i < CHUNKS_PER_WARP || warp_id() < WARPS_WITH_EXTRA)
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
        for (int i = 0; i < MAX_CHUNKS; i++)
            if (i < CHUNKS_PER_WARP || warp_id() < WARPS_WITH_EXTRA)
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
    Address sums = smem_address(partial + warp_id() * BATCH);
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
