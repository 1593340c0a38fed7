/*---
idea   = "float32 by three products in half precision. A first kernel splits every tile of K and V once into halves, x * 2^e = hi + lo, in the layout that the copy engine and wgmma need; Q and P are split in registers; hi hi + hi lo + lo hi is the product to 22 bits."
expect = "Rung 29 splits each tile into three TF32 products anew for every block of queries. Products of halves are twice as fast as TF32 and may be transposed, so V needs no transposition: 3 x 17 us of products at b8t1024 and 25 us for the splitting, against 317 us."
found  = "117.8 us at b8t1024 on an H200 (three warpgroups, 128 keys): 4.1x over torch's efficient attention (486 us). 642 us for 16 heads of 8192, 7.0x over torch's. A row of zeros keeps a factor of its scores above zero: without it zero times a hidden score is NaN."
from   = "attention/31"
rewrite = "Every product becomes three, and a separate kernel has split K and V into halves: loads, products and the sum over a block of keys are new code; roles, masks and the softmax stay."
dtypes = ["f32"]
arch_specific = true
needs  = ["sm >= 90 and sm < 100", "HS % 16 == 0", "HS <= 128", "scale > 0", "q_stride_T % 4 == 0", "BC % 64 == 0", "GROUPS * (BC + 2 * HS + 64) <= 2 * (512 // BLOCKS - 24)", "BC // 2 + 26 <= 512 // (BLOCKS * (GROUPS + 1)) // 8 * 8"]  # registers: of a block, and of one product
options = ["--use_fast_math"]

# q, k and v are views of one qkv and share their strides
bind = { stride_B = "q_stride_B", stride_NH = "q_stride_NH", stride_T = "q_stride_T" }
# K and V of BC tokens each: hi and lo, swizzled, the next 64 columns of longer heads in a part of their own
buffers.halves = { shape = ["B * NH", "ceil_div(T, BC)", 2, 2, "ceil_div(HS, 64)", "BC", 64], dtype = "f16" }
# by what each tile has to be multiplied, in each of 16 bytes
buffers.units = { shape = ["B * NH", "ceil_div(T, BC)", 2, 4], dtype = "f32" }

[define]
HS = "C // NH"

[tune]
GROUPS = [3, 2, 1]  # consumer warpgroups of a block: 64 queries each
BC     = [128, 64]
STAGES = [2, 3]
BLOCKS = [1, 2]

[[launch]]
kernel = "split"
grid   = ["B * NH", "ceil_div(T, BC)", 2]
block  = 256

[[launch]]
kernel = "flash"
grid   = ["B * NH", "ceil_div(T, 64 * GROUPS)"]
block  = "128 * (GROUPS + 1)"
shared = "ceil_div(HS, 64) * 256 * (64 * GROUPS + 2 * STAGES * BC) + 256 * GROUPS + 64 * STAGES"
[model]
serves = { prompt = 1 }
---*/
#define MULTIPLY_HALVES
#include "attention_tile.cuh"
#include "halves.cuh"

constexpr int BR = 64 * GROUPS;    // queries of a block
constexpr int SPLITTERS = 256;     // threads of `split`
constexpr float HEADROOM = 14.0f;  // P reaches 2^14 instead of 1, so that its small values keep their bits in half precision
constexpr float LN_2 = 0.6931471805599453f;

// The block's registers are redistributed: the producer keeps few, and the consumers take the rest.
constexpr int AT_START = 65536 / (WARPGROUP * (GROUPS + 1) * BLOCKS) / 8 * 8, PRODUCER = 24;
constexpr int REST = ((GROUPS + 1) * AT_START - PRODUCER) / GROUPS / 8 * 8, CONSUMER = REST < 240 ? REST : 240;

// Numbers as hi + lo of 11 bits each, scaled by a power of two.
template <int ROWS>
struct Halves
{
    __half hi[PARTS][ROWS * 64], lo[PARTS][ROWS * 64];
};
using Tile = Halves<BC>;

struct Shared
{
    Halves<BR> q;
    Tile k[STAGES], v[STAGES];
    float q_unit[BR];
    float4 k_unit[STAGES], v_unit[STAGES];
    uint64_t k_full[STAGES], k_free[STAGES], v_full[STAGES], v_free[STAGES];
};

// Writes four neighbouring elements of a row to their places.
template <int ROWS>
__device__ __forceinline__ void store_halves(Halves<ROWS>& tile, int row, int column, float4 x, float factor)
{
    const int at = swizzled_place(row, column % 64 / 8) + column % 8 * int(sizeof(__half));
    uint2 hi, lo;
    split4(x, factor, hi, lo);
    *reinterpret_cast<uint2*>(reinterpret_cast<char*>(tile.hi[column / 64]) + at) = hi;
    *reinterpret_cast<uint2*>(reinterpret_cast<char*>(tile.lo[column / 64]) + at) = lo;
}

// One tile of BC keys or values.
extern "C" __global__ void __launch_bounds__(SPLITTERS)
    split(const float* __restrict__ k, const float* __restrict__ v, __half* __restrict__ halves, float* __restrict__ units, int T,
          int NH, int stride_B, int stride_NH, int stride_T)
{
    constexpr int QUADS = HS / 4, EACH = ceil_div(BC * QUADS, SPLITTERS);
    const int b = blockIdx.x / NH, nh = blockIdx.x % NH, token0 = blockIdx.y * BC;
    const float* from = (blockIdx.z == 0 ? k : v) + (int64_t)b * stride_B + (int64_t)nh * stride_NH + (int64_t)token0 * stride_T;
    const int tile = (blockIdx.x * gridDim.y + blockIdx.y) * 2 + blockIdx.z;
    float4 x[EACH] = {};
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int quad = threadIdx.x + i * SPLITTERS, row = quad / QUADS;
        if (row < BC && token0 + row < T) x[i] = *reinterpret_cast<const float4*>(from + row * stride_T + quad % QUADS * 4);
        largest = fmaxf(largest, largest_of(x[i]));
    }
    const Unit unit(block_max(largest));
    Tile& to = reinterpret_cast<Tile*>(halves)[tile];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int quad = threadIdx.x + i * SPLITTERS, row = quad / QUADS;
        // perhaps never false: most heads divide evenly among the threads
        if (row < BC) store_halves(to, row, quad % QUADS * 4, x[i], unit.factor);
    }
    if (threadIdx.x == 0) units[tile * 4] = unit.unit;
}

// A stage of step i, and the parity of the round in which it is full; it was free in the round before.
__device__ __forceinline__ int stage_of(unsigned i) { return i % STAGES; }
__device__ __forceinline__ unsigned round_of(unsigned i) { return i / STAGES % 2; }

// This warp has finished with a stage.
__device__ __forceinline__ void release(uint64_t* barrier)
{
    __syncwarp();
    if (threadIdx.x % WARP_SIZE == 0) byte_barrier_arrive(barrier);
}

// A thread's two rows; m is the maximum as an exponent of two. `factor` scales a tile's products to such scores.
struct Rows
{
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {};

    __device__ __forceinline__ void add(float (&s)[BC / 2], float (&shrink)[2], const float (&factor)[2])
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float largest = s[2 * h];
#pragma unroll
            for (int i = 2 * h; i < BC / 2; i += 4) largest = fmaxf(largest, fmaxf(s[i], s[i + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
            largest = fmaxf(m[h], largest * factor[h]);
            shrink[h] = exp2f(m[h] - largest);
            m[h] = largest;
            l[h] *= shrink[h];
#pragma unroll
            for (int i = 2 * h; i < BC / 2; i += 4) {
                s[i] = exp2f(fmaf(s[i], factor[h], HEADROOM - largest));
                s[i + 1] = exp2f(fmaf(s[i + 1], factor[h], HEADROOM - largest));
                l[h] += s[i] + s[i + 1];
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(WARPGROUP*(GROUPS + 1), BLOCKS)
    flash(const float* __restrict__ q, const __half* __restrict__ halves, const float* __restrict__ units,
          float* __restrict__ out, float* __restrict__ lse, int T, int NH, int stride_B, int stride_NH, int stride_T, float scale,
          int causal)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int b = blockIdx.x / NH, nh = blockIdx.x % NH, row0 = (gridDim.y - 1 - blockIdx.y) * BR;  // the longest rows first
    const int group = threadIdx.x / WARPGROUP;
    const auto blocks_for = [&](int rows) { return ceil_div(causal ? min(T, rows) : T, BC); };
    const int blocks = blocks_for(row0 + BR);

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            byte_barrier_init(&shared.k_full[stage]);
            byte_barrier_init(&shared.v_full[stage]);
            byte_barrier_init(&shared.k_free[stage], GROUPS * WARPGROUP / WARP_SIZE);
            byte_barrier_init(&shared.v_free[stage], GROUPS * WARPGROUP / WARP_SIZE);
        }
    }
    __syncthreads();

    if (group == GROUPS) {
        warpgroup_give_registers<PRODUCER>();
        if (threadIdx.x % WARPGROUP > 0) return;
        const auto copy = [&](Tile& to, float4& unit, uint64_t* full, int64_t tile) {
            byte_barrier_expect(full, sizeof(Tile) + sizeof(float4));
            bulk_copy(&to, reinterpret_cast<const Tile*>(halves) + tile, sizeof(Tile), full);
            bulk_copy(&unit, units + tile * 4, sizeof(float4), full);
        };
        for (int i = 0; i < blocks; i++) {  // from the last block of keys to the first, so that masked blocks come first
            const int stage = stage_of(i);
            const int64_t tile = ((int64_t)blockIdx.x * ceil_div(T, BC) + blocks - 1 - i) * 2;
            byte_barrier_wait(&shared.k_free[stage], round_of(i) ^ 1);
            copy(shared.k[stage], shared.k_unit[stage], &shared.k_full[stage], tile);
            byte_barrier_wait(&shared.v_free[stage], round_of(i) ^ 1);
            copy(shared.v[stage], shared.v_unit[stage], &shared.v_full[stage], tile + 1);
        }
        return;
    }

    warpgroup_take_registers<CONSUMER>();
    const int rows_at = row0 + group * 64, mine = rows_at < T ? blocks_for(rows_at + 64) : 0;
    {  // two threads split one query
        const int row = threadIdx.x / 2, half = threadIdx.x % 2 * (HS / 2);
        const float* from = q + (int64_t)b * stride_B + (int64_t)nh * stride_NH + (int64_t)(row0 + row) * stride_T + half;
        float4 x[HS / 8] = {};
        float largest = 0.0f;
        if (row0 + row < T) {
#pragma unroll
            for (int i = 0; i < HS / 8; i++) {
                x[i] = reinterpret_cast<const float4*>(from)[i];
                largest = fmaxf(largest, largest_of(x[i]));
            }
        }
        const Unit unit(fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1)));
#pragma unroll
        for (int i = 0; i < HS / 8; i++) store_halves(shared.q, row, half + 4 * i, x[i], unit.factor);
        if (half == 0) shared.q_unit[row] = unit.unit * scale * LOG2_E;
        fence_async_proxy();
        sync_some<WARPGROUP>(group + 1);
    }
    const float q_unit[2] = {shared.q_unit[group * 64 + warpgroup_row(0)], shared.q_unit[group * 64 + warpgroup_row(1)]};

    Rows rows;
    float s[BC / 2], o[HS / 2] = {}, sum[HS / 2], shrink[2];
    uint32_t hi[BC / 16][4], lo[BC / 16][4];
    int i = 0;
    for (; i < blocks - mine; i++) {  // keys after all queries of this group
        byte_barrier_wait(&shared.k_full[stage_of(i)], round_of(i));
        release(&shared.k_free[stage_of(i)]);
        byte_barrier_wait(&shared.v_full[stage_of(i)], round_of(i));
        release(&shared.v_free[stage_of(i)]);
    }
    for (; i < blocks; i++) {
        const int stage = stage_of(i), block = blocks - 1 - i;
        byte_barrier_wait(&shared.k_full[stage], round_of(i));
        // The small products first: tensor cores truncate when they add, and lose less while the sum is small.
        warpgroup_begin();
        multiply_scores<BR>(s, shared.q.lo, group * 64, shared.k[stage].hi, false);
        multiply_scores<BR>(s, shared.q.hi, group * 64, shared.k[stage].lo, true);
        multiply_scores<BR>(s, shared.q.hi, group * 64, shared.k[stage].hi, true);
        warpgroup_commit();
        // Of rows of zeros it would be zero, and the product with a hidden score no number.
        const float k_unit = shared.k_unit[stage].x,
                    factor[2] = {fmaxf(q_unit[0] * k_unit, 0x1p-126f), fmaxf(q_unit[1] * k_unit, 0x1p-126f)};
        warpgroup_wait<0>();
        release(&shared.k_free[stage]);
        if (block == mine - 1) mask_scores(s, rows_at, block * BC, T, causal);
        rows.add(s, shrink, factor);
#pragma unroll
        for (int j = 0; j < BC / 4; j++) split2(s[2 * j], s[2 * j + 1], hi[j / 4][j % 4], lo[j / 4][j % 4]);
        byte_barrier_wait(&shared.v_full[stage], round_of(i));
        // The sum restarts for each block of keys, and is added to O with instructions that round correctly.
        warpgroup_begin();
        multiply_values(sum, lo, shared.v[stage].hi, false);
        multiply_values(sum, hi, shared.v[stage].lo, true);
        multiply_values(sum, hi, shared.v[stage].hi, true);
        warpgroup_commit();
        const float v_unit = shared.v_unit[stage].x;
        warpgroup_wait<0>();
        release(&shared.v_free[stage]);
#pragma unroll
        for (int j = 0; j < HS / 2; j++) o[j] = fmaf(o[j], shrink[j / 2 % 2], sum[j] * v_unit);
    }

#pragma unroll
    for (int h = 0; h < 2; h++) {
        rows.l[h] += __shfl_xor_sync(ALL_LANES, rows.l[h], 1);
        rows.l[h] += __shfl_xor_sync(ALL_LANES, rows.l[h], 2);
        const int t = rows_at + warpgroup_row(h);
        if (t >= T) continue;
        const float share = 1.0f / rows.l[h];
        float* to = out + (((int64_t)b * T + t) * NH + nh) * HS + warpgroup_column();
#pragma unroll
        for (int j = 2 * h; j < HS / 2; j += 4)
            *reinterpret_cast<float2*>(to + j / 4 * 8) = make_float2(o[j] * share, o[j + 1] * share);
        if (lse != nullptr && warpgroup_column() == 0) {
            lse[((int64_t)b * NH + nh) * T + t] = (rows.m[h] - HEADROOM) * LN_2 + logf(rows.l[h]);
        }
    }
}
