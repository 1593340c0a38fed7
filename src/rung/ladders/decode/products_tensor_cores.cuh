// Products of eight rows with the vector on tensor cores: the vector's rounding errors are one more column, at no cost.
#pragma once
#include "eight_bits.cuh"
#include "step_vector.cuh"

namespace decode {

// The right operand of a warp's chunks of the rows. A lane's sixteen bytes of a row, words 0 to 3, are the left operand of one
// step: the tensor cores take words 0 and 2 as a row, and 1 and 3 as the row eight below. So a vector needs two columns of the
// right operand, one for its even words and one for the odd, and the result is the even column's upper row plus the odd column's
// lower one. Columns 0 and 1 hold the vector, 2 and 3 its rounding errors. Vectors of several rows use further columns, and
// beyond eight columns further sets of eight, with the same weights. Sixteen bytes of 8-bit weights become words for two steps.
struct Words
{
    // The words of the lane's column that are multiplied by words 0 or 1, and 2 or 3.
    uint32_t even[COLUMN_SETS][MAX_CHUNKS * STEPS], odd[COLUMN_SETS][MAX_CHUNKS * STEPS];

    static __device__ __forceinline__ uint32_t term(uint32_t word, int rest)
    {
        if (!ROUNDED_LATE) return word;
        const uint32_t near = to_tf32(__uint_as_float(word));
        return rest ? __float_as_uint(__uint_as_float(word) - __uint_as_float(near)) : near;
    }

    __device__ __forceinline__ void load(const Vector& vector, int part)
    {
        const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int set = 0; set < COLUMN_SETS; set++) {
            const int b = B == 1 ? 0 : (set * 8 + g) / COLUMNS_OF_VECTOR, rest = WITH_REST ? g / 2 % 2 : 0;
            const bool wanted = B == 1 ? g < (vector.left > 0 ? 4 : 2) : b < B && (rest == 0 || ROUNDED_LATE || vector.left > 0);
            const Address from = smem_address(vector.numbers) +
                                 (rest * vector.left + part * C + (B == 1 ? 0 : b * vector.apart)) * int(sizeof(Factor)) +
                                 (warp_id() * 64 + t * 16) * STEPS + g % 2 * 4;
#pragma unroll
            for (int i = 0; i < MAX_CHUNKS * STEPS; i++) {
                even[set][i] = odd[set][i] = 0;
                if (wanted && (i / STEPS < CHUNKS_PER_WARP || warp_id() < WARPS_WITH_EXTRA)) {
                    const Address word = from + i / STEPS * (STEP_WARPS * 64 * STEPS) + i % STEPS * 16;
                    even[set][i] = term(at<uint32_t>(word), rest), odd[set][i] = term(at<uint32_t>(word + 8), rest);
                }
            }
        }
    }
};

// The tile row of lane group g. Eight lanes read at once; their two rows must not start in the same bank, as the two of a slot
// may.
__device__ __forceinline__ int row_of(int g)
{
    constexpr bool SAME_BANK = ROWS_OF_SLOT == 2 && C % 128 == 0;
    return SAME_BANK ? (g & 4) | (g & 1) << 1 | (g >> 1 & 1) : g;
}

// The upper term of a weight, and the remainder: both are multiplied by both terms of the vector.
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

// The lanes' partial sums of eight rows.
struct Sums
{
    float acc[COLUMN_SETS][2][4] = {};

    // Sixteen bytes of a row, the lane's part of chunk i.
    __device__ __forceinline__ void add(const uint4& bits, const Words& x, int i)
    {
        const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            uint32_t a[4] = {words[0], words[1], words[2], words[3]};
            if (TWO_TERM_TF32) {
#pragma unroll
                for (int set = 0; set < COLUMN_SETS; set++) multiply_two_term(acc[set], a, x.even[set][i], x.odd[set][i]);
                continue;
            }
            if (SCALED) as_halves(words[2 * j % 4], a[0], a[1]), as_halves(words[(2 * j + 1) % 4], a[2], a[3]);
            const int step = i * STEPS + j;
#pragma unroll
            for (int set = 0; set < COLUMN_SETS; set++) {
                const uint32_t b[2] = {x.even[set][step], x.odd[set][step]};
                multiply_halves(acc[set][step % 2], a, b);
            }
        }
    }
    __device__ __forceinline__ void add(const Sums& other)
    {
#pragma unroll
        for (int i = 0; i < 8 * COLUMN_SETS; i++) acc[i / 8][i / 4 % 2][i % 4] += other.acc[i / 8][i / 4 % 2][i % 4];
    }
    // Row lane / 4 times the lane's vector of a set: held by one lane of four, or by two of which the first is valid.
    __device__ __forceinline__ float total(int set = 0) const
    {
        const float sum = (acc[set][0][0] + acc[set][1][0]) + (acc[set][0][3] + acc[set][1][3]);
        return COLUMNS_OF_VECTOR == 4 ? sum + __shfl_xor_sync(ALL_LANES, sum, 1) : sum;
    }
};

}  // namespace decode
#include "row_products.cuh"
