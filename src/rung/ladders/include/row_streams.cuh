// Products of few rows of x with a matrix, limited by memory: each number of the matrix is loaded once, 16 bytes per lane, and all
// of a lane's loads are in flight before it waits for the kernel ahead, which may still compute x. PARTS warps share a row of the
// matrix, and each warp has ROWS of them; M (rows of x), C, ROWS, PARTS, WARPS and EARLY are the rung's.
#pragma once
#include "numbers.cuh"

namespace few_rows {

constexpr int THREADS = 32 * WARPS, TEAMS = WARPS / PARTS, OUTPUTS = M * ROWS;
constexpr int VECTORS = C / VEC, EACH = ceil_div(VECTORS, 32 * PARTS), FILLS = ceil_div(VECTORS, THREADS);
constexpr int PLANES = VEC / 4;  // a vector's floats in quarters, each in a plane of its own: without bank conflicts
static_assert(C % VEC == 0 && WARPS % PARTS == 0 && OUTPUTS <= 32, "whole vectors, whole teams, at most one output per lane");

__device__ __forceinline__ uint4 load_fresh(const Real* address) { return __ldcg(reinterpret_cast<const uint4*>(address)); }

// The sum of each output, in the lane of its number (vector of x * ROWS + row), of the warps whose part is 0; it waits for the
// kernel ahead. With a norm, of rows of RMSNorm.
template <bool NORM>
__device__ __forceinline__ float product(const Real* __restrict__ x, const Real* __restrict__ norm,
                                         const Real* __restrict__ weight, int first, int rows, float eps)
{
    extern __shared__ float4 xs[];  // (M, PLANES, VECTORS)
    __shared__ float squares[M][WARPS], partial[TEAMS][PARTS][32];
    const int lane = lane_id(), warp = warp_id(), part = warp % PARTS;

    uint4 w[ROWS][EACH], gain[FILLS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = (part * EACH + i) * WARP_SIZE + lane;
            w[r][i] = make_uint4(0, 0, 0, 0);
            if (at < VECTORS && first + r < rows) w[r][i] = bits_of(load_stream(weight + size_t(first + r) * C + at * VEC));
        }
#pragma unroll
    for (int i = 0; i < FILLS; i++)
        if (NORM && int(threadIdx.x) + i * THREADS < VECTORS)
            gain[i] = bits_of(load_vec(norm + (threadIdx.x + i * THREADS) * VEC));
    if (EARLY) pdl_launch_dependents();  // the next kernel, too, requests its weights while this one waits
    pdl_wait();
    if (!EARLY) pdl_launch_dependents();

#pragma unroll
    for (int m = 0; m < M; m++) {
        float square = 0.0f;
#pragma unroll
        for (int i = 0; i < FILLS; i++) {
            const int at = threadIdx.x + i * THREADS;
            if (at >= VECTORS) continue;
            const uint4 given = load_fresh(x + size_t(m) * C + at * VEC);
            float v[VEC];
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                v[j] = number_at(given, j);
                square += v[j] * v[j];
                if (NORM) v[j] *= number_at(gain[i], j);
            }
#pragma unroll
            for (int p = 0; p < PLANES; p++)
                xs[(m * PLANES + p) * VECTORS + at] = make_float4(v[4 * p], v[4 * p + 1], v[4 * p + 2], v[4 * p + 3]);
        }
        if (NORM) {
            square = warp_sum(square);
            if (lane == 0) squares[m][warp] = square;
        }
    }
    __syncthreads();
    // The compiler would convert all weights to floats before the barrier, in twice the registers.
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < EACH; i++) w[r][i] = renewed(w[r][i]);

    float sums[M][ROWS] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = min((part * EACH + i) * WARP_SIZE + lane, VECTORS - 1);  // weights beyond the last vector are zero
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int p = 0; p < PLANES; p++) {
                const float4 v = xs[(m * PLANES + p) * VECTORS + at];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const auto own = [&](int j) { return number_at(w[r][i], 4 * p + j); };
                    sums[m][r] += own(0) * v.x + own(1) * v.y + own(2) * v.z + own(3) * v.w;
                }
            }
    }
    float sum = 0.0f;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float whole = warp_sum(sums[m][r]);
            if (lane == m * ROWS + r) sum = whole;
        }
    if (PARTS > 1) {
        partial[warp / PARTS][part][lane] = sum;
        __syncthreads();
        sum = 0.0f;
#pragma unroll
        for (int p = 0; p < PARTS; p++) sum += partial[warp / PARTS][p][lane];
    }
    if (NORM && lane < OUTPUTS) {
        float square = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) square += squares[lane / ROWS][i];
        sum *= rsqrtf(square / C + eps);
    }
    return sum;
}

// The first row of the matrix that this warp has, the row and the vector of this lane's output, and whether it stores it.
struct Place
{
    int first = (blockIdx.x * TEAMS + warp_id() / PARTS) * ROWS, row = first + lane_id() % ROWS, m = lane_id() / ROWS;

    __device__ __forceinline__ bool mine(int rows) const { return warp_id() % PARTS == 0 && lane_id() < OUTPUTS && row < rows; }
};

}  // namespace few_rows
