// Products of eight rows with the vector on CUDA cores: a lane multiplies its sixteen bytes of a row by the vector's elements,
// one after the other, and four lanes add up.
#pragma once
#include "step_vector.cuh"

namespace decode {

// The address of the lane's elements of the vector; they are read when needed, since four registers of a row would need eight
// registers of the vector.
struct Words
{
    const Factor* from;
    int left;

    __device__ __forceinline__ void load(const Vector& vector, int part)
    {
        from = vector.numbers + part * C + (warp_id() * 4 + lane_id() % 4) * VEC, left = vector.left;
    }
};

__device__ __forceinline__ int row_of(int g) { return g; }

// The lanes' partial sums of eight rows.
struct Sums
{
    float acc[2] = {};

    // Sixteen bytes of a row, the lane's part of chunk i.
    __device__ __forceinline__ void add(const uint4& bits, const Words& x, int i)
    {
        const Factor* from = x.from + i * (STEP_WARPS * 4 * VEC);
        const Vec16<Factor> numbers = load_vec(from), left = x.left > 0 ? load_vec(from + x.left) : Vec16<Factor>();
#pragma unroll
        for (int j = 0; j < VEC; j++)
            acc[j % 2] +=
                weight_at(bits, j, (const Weight*)nullptr) * (to_float(numbers[j]) + (x.left > 0 ? to_float(left[j]) : 0.0f));
    }
    __device__ __forceinline__ void add(const Sums& other) { acc[0] += other.acc[0], acc[1] += other.acc[1]; }
    // The sum of row lane / 4, in each of its four lanes.
    __device__ __forceinline__ float total(int = 0) const
    {
        float sum = acc[0] + acc[1];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        return sum + __shfl_xor_sync(ALL_LANES, sum, 2);
    }
};
static_assert(!SCALED && B == 1, "one sequence; weights are as long as the vector's numbers");

}  // namespace decode
#include "row_products.cuh"
