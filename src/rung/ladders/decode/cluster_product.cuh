// Rows in shared memory times a vector in shared memory, on tensor cores.
#pragma once
#include "cluster_layout.cuh"
#include "eight_bits.cuh"

namespace decode::clusters {

// ---- products ---------------------------------------------------------------------------------------------------

// Up to eight rows times a vector in shared memory, N chunks of 32 columns: lanes 0, 4, 8 ... get the sum of row lane / 4. As in
// products_tensor_cores.cuh the vector's even and odd words are two columns of the tensor cores' tile, and their rounding errors,
// `errors_at` bytes further, two more.
template <int N, bool WITH_ERRORS>
__device__ __forceinline__ float tile_sum(Address rows, int stride, int first, int last, Address vector, int errors_at)
{
    constexpr int AT_ONCE = N <= 8 ? N : N % 8 == 0 ? 8 : N % 6 == 0 ? 6 : N % 5 == 0 ? 5 : N % 4 == 0 ? 4 : 1;
    const int g = lane_id() / 4, t = lane_id() % 4;
    const bool wanted = g < (WITH_ERRORS ? 4 : 2);
    const Address from = rows + min(first + g, last) * stride + t * 16;
    const Address x = vector + t * 16 + g % 2 * 4 + (WITH_ERRORS && g / 2 % 2 ? errors_at : 0);
    float acc[2][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < N; chunk += AT_ONCE) {
        uint4 a[AT_ONCE];
        uint32_t b[AT_ONCE][2];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            b[i][0] = b[i][1] = 0;
            if (wanted) b[i][0] = at<uint32_t>(x + (chunk + i) * 64), b[i][1] = at<uint32_t>(x + (chunk + i) * 64 + 8);
            a[i] = at<uint4>(from + (chunk + i) * 64);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const uint32_t words[4] = {a[i].x, a[i].y, a[i].z, a[i].w};
            mma_m16n8k16<Factor>(acc[(chunk + i) % 2], words, b[i]);
        }
    }
    const float sum = (acc[0][0] + acc[1][0]) + (acc[0][3] + acc[1][3]);
    return WITH_ERRORS ? sum + __shfl_xor_sync(ALL_LANES, sum, 1) : sum;
}

// A vector's columns for products of up to eight rows, and such a product. 16-bit vectors are read with the rows.
template <int N, bool WITH_ERRORS, bool SWAPPED = false, bool EIGHT = SCALED>
struct Product
{
    const Factor* vector;
    int errors_at, part;  // which N chunks of the vector

    __device__ __forceinline__ float sum(Address rows, int stride, int first, int last) const
    {
        return tile_sum<N, WITH_ERRORS>(rows, stride, first, last, shared_address(vector) + part * N * 64, errors_at * 2);
    }
    static __device__ __forceinline__ int writer(int) { return 0; }  // the lane of four that has a row's sum
};

// With 8-bit rows a lane has sixteen columns of a chunk, of which one column of the tensor cores' tile takes the first eight, the
// other the last. Rows whose length is a multiple of 128 bytes all begin in the same bank: if SWAPPED, odd rows are multiplied by
// neighbouring chunks in the other order, for which the tile's other four columns have the vector.
template <int N, bool WITH_ERRORS, bool SWAPPED>
struct Product<N, WITH_ERRORS, SWAPPED, true>
{
    static_assert(!SWAPPED || (WITH_ERRORS && N % 2 == 0), "pairs of chunks");
    static constexpr int AT_ONCE = N <= 8 ? N : N % 6 == 0 ? 6 : N % 8 == 0 ? 8 : N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1;
    uint4 x[N];

    __device__ __forceinline__ Product(const Factor* vector, int errors_at, int part)
    {
        const int g = lane_id() / 4, t = lane_id() % 4, other = SWAPPED ? g / 4 * 128 : 0;
        const Address from =
            shared_address(vector) + part * N * 128 + t * 32 + g % 2 * 16 + (WITH_ERRORS && g / 2 % 2 ? errors_at * 2 : 0);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = make_uint4(0, 0, 0, 0);
            if (SWAPPED || g < (WITH_ERRORS ? 4 : 2)) x[i] = at<uint4>(from + i * 128 + (i % 2 ? -other : other));
        }
    }
    __device__ __forceinline__ float sum(Address rows, int stride, int first, int last) const
    {
        const int g = lane_id() / 4, t = lane_id() % 4, other = SWAPPED ? g % 2 * 64 : 0;
        const Address from = rows + min(first + g, last) * stride + t * 16;
        float acc[2][4] = {};
#pragma unroll
        for (int chunk = 0; chunk < N; chunk += AT_ONCE) {
            uint4 a[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) a[i] = at<uint4>(from + (chunk + i) * 64 + ((chunk + i) % 2 ? -other : other));
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                multiply(acc[0], a[i].x, a[i].z, x[chunk + i].x, x[chunk + i].y);
                multiply(acc[1], a[i].y, a[i].w, x[chunk + i].z, x[chunk + i].w);
            }
        }
        const float sum = (acc[0][0] + acc[1][0]) + (acc[0][3] + acc[1][3]);
        return WITH_ERRORS ? sum + __shfl_xor_sync(ALL_LANES, sum, 1) : sum;
    }
    static __device__ __forceinline__ int writer(int row) { return SWAPPED ? row % 2 * 2 : 0; }

    // Four bytes of a row times the words of the even column, and four more times those of the odd one.
    static __device__ __forceinline__ void multiply(float (&acc)[4], uint32_t even, uint32_t odd, uint32_t x0, uint32_t x1)
    {
        uint32_t a[4];
        as_halves(even, a[0], a[2]), as_halves(odd, a[1], a[3]);
        const uint32_t b[2] = {x0, x1};
        mma_m16n8k16<Factor>(acc, a, b);
    }
};

// Two neighbouring numbers of a vector, and their rounding errors.
__device__ __forceinline__ void set_pair(Factor* vector, int errors_at, int pair, float a, float b)
{
    a = within_range(a), b = within_range(b);
    const uint32_t near = pack2<Factor>(a, b);
    const auto rest = [&](float v, int i) { return v - weight_at(make_uint4(near, 0, 0, 0), i, (const Factor*)nullptr); };
    reinterpret_cast<uint32_t*>(vector)[pair] = near;
    reinterpret_cast<uint32_t*>(vector + errors_at)[pair] = pack2<Factor>(rest(a, 0), rest(b, 1));
}

}  // namespace decode::clusters
