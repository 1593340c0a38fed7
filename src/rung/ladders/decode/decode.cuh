// Shared by the decode rungs from the fourth on: rows of a matrix held in registers, and the vectors they are multiplied by,
// laid out in shared memory so that a lane reads its part in 16-byte pieces without bank conflicts.
#pragma once
#include "rung.cuh"

namespace decode {

// The shape is compiled in: whole rows fit in registers only when their length is known.
constexpr int B = DIM_B, L = DIM_L, C = DIM_C, NH = DIM_NH, F = DIM_F, V = DIM_V, MAXT = DIM_MAXT, HS = C / NH;

// 8-bit weights are integers with one scale per row.
#ifdef EIGHT_BITS
using Weight = int8_t;
#else
using Weight = Real;
#endif

// ---- memory -----------------------------------------------------------------------------------------------------

// Bypasses L1: for data that another kernel has just written.
__device__ __forceinline__ float4 load_fresh(const float4* address) { return __ldcg(address); }
__device__ __forceinline__ float load_fresh(const float* address) { return __ldcg(address); }
__device__ __forceinline__ int load_fresh(const int* address) { return __ldcg(address); }

__device__ __forceinline__ uint4 zero_bits() { return make_uint4(0, 0, 0, 0); }

// ---- weights ----------------------------------------------------------------------------------------------------

// Weight i of a piece of 16 bytes as a float.
__device__ __forceinline__ float weight_at(const uint4& bits, int i, const float*)
{
    const uint32_t word[4] = {bits.x, bits.y, bits.z, bits.w};
    return __uint_as_float(word[i]);
}
__device__ __forceinline__ float weight_at(const uint4& bits, int i, const __nv_bfloat16*)
{
    const uint32_t word[4] = {bits.x, bits.y, bits.z, bits.w};  // a bf16 is the upper half of a float
    return __uint_as_float(i % 2 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16);
}
__device__ __forceinline__ float weight_at(const uint4& bits, int i, const __half*)
{
    const uint32_t word[4] = {bits.x, bits.y, bits.z, bits.w};
    return __half2float(__ushort_as_half(static_cast<unsigned short>(i % 2 ? word[i / 2] >> 16 : word[i / 2])));
}
// A byte b + 128 in the low bits of 2^23 is the float 2^23 + 128 + b: cheaper than a conversion.
__device__ __forceinline__ float weight_at(const uint4& bits, int i, const int8_t*)
{
    const uint32_t word[4] = {bits.x, bits.y, bits.z, bits.w};
    const uint32_t shifted = word[i / 4] ^ 0x80808080u;
    return __uint_as_float(__byte_perm(shifted, 0x4b000000u, 0x7440u | unsigned(i % 4))) - 8388736.0f;
}

template <class W>
struct Matrix
{
    const W* weight;
    const float* scale;  // one per row, or null

    __device__ __forceinline__ float row_scale(int row) const { return scale ? __ldg(scale + row) : 1.0f; }
};

// The rows' scales, or null as the compiler sees it where weights have none.
__device__ __forceinline__ const float* scales(const float* of_rows) { return sizeof(Weight) == 1 ? of_rows : nullptr; }

// The part of a row of K weights that one lane holds: pieces lane, lane + 32, ...
template <class W, int K>
struct Row
{
    static constexpr int EACH = 16 / sizeof(W);
    static constexpr int COUNT = K / EACH;
    static constexpr int PIECES = (COUNT + WARP_SIZE - 1) / WARP_SIZE;
    static_assert(K % EACH == 0, "rows must be whole pieces of 16 bytes");

    uint4 bits[PIECES];

    static __device__ __forceinline__ bool inside(int i, int lane)
    {
        return COUNT % WARP_SIZE == 0 || i * WARP_SIZE + lane < COUNT;
    }

    __device__ __forceinline__ void request(const W* row, int lane, bool wanted = true)
    {
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            bits[i] = zero_bits();
            if (wanted && inside(i, lane)) bits[i] = load_no_allocate(reinterpret_cast<const uint4*>(row) + i * WARP_SIZE + lane);
        }
    }

    __device__ __forceinline__ float at(int i, int j) const { return weight_at(bits[i], j, (const W*)nullptr); }
};

// ---- vectors ----------------------------------------------------------------------------------------------------

// K floats in shared memory, for lanes that hold `Row<W, K>`. Group j of all lanes' pieces is contiguous, so that neighbouring
// lanes read neighbouring float4s.
template <class W, int K>
struct Spread
{
    using RowSlice = Row<W, K>;
    static constexpr int GROUPS = RowSlice::EACH / 4;
    static constexpr int STRIDE = RowSlice::PIECES * WARP_SIZE;
    static constexpr int FLOAT4S = GROUPS * STRIDE;

    // The position of the vector's float4 number f.
    static __device__ __forceinline__ int slot(int f) { return f % GROUPS * STRIDE + f / GROUPS; }
};

// Four numbers of any format as floats.
template <class T>
__device__ __forceinline__ float4 four_floats(const T* from)
{
    const Vec<T, 4> v = *reinterpret_cast<const Vec<T, 4>*>(from);
    return make_float4(to_float(v[0]), to_float(v[1]), to_float(v[2]), to_float(v[3]));
}

// Copies a vector of K numbers to shared memory, by all threads of the block.
template <class W, int K, class T>
__device__ __forceinline__ void spread(float4* to, const T* from)
{
    // perhaps never several turns: widths beyond 1024 are too slow to emulate
    for (int f = thread_rank(); f < K / 4; f += block_threads()) to[Spread<W, K>::slot(f)] = four_floats(from + 4 * f);
}

struct Norm
{
    float mean, rstd;
};

// Mean and deviation of a vector in that layout, computed by each warp: no barrier, and two chains of five shuffles.
template <class W, int K>
__device__ __forceinline__ Norm norm_of(const float4* x, int lane, float eps)
{
    using RowSlice = Row<W, K>;
    constexpr int GROUPS = Spread<W, K>::GROUPS, STRIDE = Spread<W, K>::STRIDE;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < RowSlice::PIECES; i++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            if (!RowSlice::inside(i, lane)) continue;
            const float4 f = x[j * STRIDE + i * WARP_SIZE + lane];
            sum += (f.x + f.y) + (f.z + f.w);
        }
    const float mean = warp_sum(sum) / K;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < RowSlice::PIECES; i++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            if (!RowSlice::inside(i, lane)) continue;
            const float4 f = x[j * STRIDE + i * WARP_SIZE + lane];
            squares += (f.x - mean) * (f.x - mean) + (f.y - mean) * (f.y - mean) + (f.z - mean) * (f.z - mean) +
                       (f.w - mean) * (f.w - mean);
        }
    return {mean, rsqrtf(warp_sum(squares) / K + eps)};
}

__device__ __forceinline__ float4 normalised(float4 x, Norm norm, float4 gain, float4 shift)
{
    return make_float4((x.x - norm.mean) * norm.rstd * gain.x + shift.x, (x.y - norm.mean) * norm.rstd * gain.y + shift.y,
                       (x.z - norm.mean) * norm.rstd * gain.z + shift.z, (x.w - norm.mean) * norm.rstd * gain.w + shift.w);
}

// ROWS rows times the layer norm of such a vector, which is computed piece by piece; every lane gets the sums.
template <class W, int K, int ROWS>
__device__ __forceinline__ void dot_norm(float (&sum)[ROWS], const Row<W, K> (&weight)[ROWS], const float4* x, const float4* gain,
                                         const float4* shift, Norm norm, int lane)
{
    using RowSlice = Row<W, K>;
    float even[ROWS] = {}, odd[ROWS] = {};
#pragma unroll
    for (int i = 0; i < RowSlice::PIECES; i++)
#pragma unroll
        for (int j = 0; j < RowSlice::EACH; j += 4) {
            if (!RowSlice::inside(i, lane)) continue;
            const int at = j / 4 * Spread<W, K>::STRIDE + i * WARP_SIZE + lane;
            const float4 f = normalised(x[at], norm, gain[at], shift[at]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                even[r] += weight[r].at(i, j) * f.x;
                odd[r] += weight[r].at(i, j + 1) * f.y;
                even[r] += weight[r].at(i, j + 2) * f.z;
                odd[r] += weight[r].at(i, j + 3) * f.w;
            }
        }
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum[r] = warp_sum(even[r] + odd[r]);
}

// The same without the norm.
template <class W, int K, int ROWS>
__device__ __forceinline__ void dot(float (&sum)[ROWS], const Row<W, K> (&weight)[ROWS], const float4* x, int lane)
{
    using RowSlice = Row<W, K>;
    float even[ROWS] = {}, odd[ROWS] = {};
#pragma unroll
    for (int i = 0; i < RowSlice::PIECES; i++)
#pragma unroll
        for (int j = 0; j < RowSlice::EACH; j += 4) {
            if (!RowSlice::inside(i, lane)) continue;
            const float4 f = x[j / 4 * Spread<W, K>::STRIDE + i * WARP_SIZE + lane];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                even[r] += weight[r].at(i, j) * f.x;
                odd[r] += weight[r].at(i, j + 1) * f.y;
                even[r] += weight[r].at(i, j + 2) * f.z;
                odd[r] += weight[r].at(i, j + 3) * f.w;
            }
        }
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum[r] = warp_sum(even[r] + odd[r]);
}

// The number of lane r's own row.
template <int ROWS>
__device__ __forceinline__ float chosen(const float (&sum)[ROWS], int lane)
{
    float own = sum[0];
#pragma unroll
    for (int r = 1; r < ROWS; r++)
        if (lane == r) own = sum[r];
    return own;
}

// A row split among WARPS_PER_ROW neighbouring warps, each with K of its weights: for each of B vectors the sum over all of them,
// valid in the first warp of the row.
template <int WARPS_PER_ROW, int WARPS, class W, int K>
__device__ __forceinline__ void split_dot(float (&sum)[B], const Row<W, K> (&weight)[1], const float4* x)
{
    __shared__ float partial[WARPS][B];
    const int lane = lane_id(), warp = warp_id();
#pragma unroll
    for (int b = 0; b < B; b++) {
        float own[1];
        dot(own, weight, x + (b * WARPS_PER_ROW + warp % WARPS_PER_ROW) * Spread<W, K>::FLOAT4S, lane);
        sum[b] = own[0];
        if (WARPS_PER_ROW > 1 && lane == 0) partial[warp][b] = sum[b];
    }
    if (WARPS_PER_ROW == 1) return;
    __syncthreads();
    if (warp % WARPS_PER_ROW == 0)
#pragma unroll
        for (int b = 0; b < B; b++)
#pragma unroll
            for (int s = 1; s < WARPS_PER_ROW; s++) sum[b] += partial[warp + s][b];
}

// ---- the model --------------------------------------------------------------------------------------------------

// 0: GELU by tanh, as x times a sigmoid; 1: GELU by erf; 2: ReLU.
template <int ACTIVATION>
__device__ __forceinline__ float activate(float x)
{
    if (ACTIVATION == 1) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    if (ACTIVATION == 2) return fmaxf(x, 0.0f);
    const float u = 1.5957691216f * (x + 0.044715f * x * x * x);
    return x / (1.0f + expf(-u));
}

// The address of key or value t of a head in the cache.
__device__ __forceinline__ size_t cached(int layer, int b, int head, int t)
{
    return (((size_t(layer) * B + b) * NH + head) * MAXT + t) * HS;
}

// ---- argmax -----------------------------------------------------------------------------------------------------

struct Best
{
    float value;
    int index;
};

__device__ __forceinline__ Best better(Best a, Best b)
{
    return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

__device__ __forceinline__ Best warp_best(Best best)
{
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2)
        best = better(best, {__shfl_xor_sync(ALL_LANES, best.value, offset), __shfl_xor_sync(ALL_LANES, best.index, offset)});
    return best;
}

}  // namespace decode
