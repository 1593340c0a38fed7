/*---
idea   = "Asynchronous products of four warps (wgmma) that read both operands from shared memory: one producer warpgroup copies, two consumers multiply, and blocks are persistent, so that the copies of the next tile begin while this one is stored."
expect = "mma.sync reaches 50 % of the library's rate, since every operand goes through registers and eight warps wait for one another at each step; with wgmma a step of 128 x 256 x 64 is four instructions per warp. The next limit is L2: 48 KB per step, 1,000 cycles at the full rate, is twice what a multiprocessor gets from it without sharing tiles: 600 to 650 TFLOP/s, 0.85x cublasLt."
found  = "On an H200 in bf16 91.9 us at b8t1024, 420 TFLOP/s, 0.65x cublasLt, where rung 17 has 0.77x; 484 TFLOP/s and 0.64x at 8192; 0.33x at b4t64, whose tiles are few. The fastest in CUDA C++, and short of 600, presumably because of L2 bandwidth. When a stage was announced one copy later, producer and consumers deadlocked (19.md)."
provenance = "ours; one group of warps that copies for two that multiply is CUTLASS' practice"
from   = "matmul/16"
rewrite = "Another instruction, which reads shared memory itself: layouts, barriers and warp roles all follow from it."
dtypes = ["bf16", "f16"]
arch_specific = true
needs  = ["sm >= 90 and sm < 100", "C % 8 == 0"]
[tune]
BN = [256, 128]
STAGES = [4, 3]
GROUP  = [8, 16, 4]
[bind]
M = "B * T"
[[launch]]
kernel = "matmul"
grid   = "min(sms, ceil_div(B * T, 128) * ceil_div(OC, BN))"
block  = 384
shared = "STAGES * (128 + BN) * 128 + 1024"
---*/
#include "wgmma.cuh"

constexpr int BM = 128, GROUPS = BM / 64, COMPUTING = GROUPS * wgmma::THREADS;
constexpr int A_BYTES = BM * wgmma::ROW_BYTES, STAGE_BYTES = A_BYTES + BN * wgmma::ROW_BYTES;

// The tiles of a block, in an order that goes down GROUP of them before it moves to the right: their operands stay in L2.
struct Tiles
{
    int M, OC, C;

    __device__ __forceinline__ int count() const { return ceil_div(M, BM) * ceil_div(OC, BN); }
    __device__ __forceinline__ int depth() const { return ceil_div(C, wgmma::DEEP); }
    __device__ __forceinline__ int2 origin(int tile) const
    {
        const int across = ceil_div(OC, BN), band = tile / (GROUP * across), within = tile % (GROUP * across);
        const int height = min(ceil_div(M, BM) - band * GROUP, GROUP);
        return make_int2((band * GROUP + within % height) * BM, within / height * BN);
    }
};

// Copies rows of a matrix of C columns into a tile, with zeros outside the matrix. A thread copies one piece of every sixteenth
// row, at the same column in all of them.
template <int ROWS>
__device__ __forceinline__ void copy_tile(char* tile, const Real* matrix, int first, int rows, int k, int C)
{
    constexpr int APART = wgmma::THREADS / 8;
    const int row = threadIdx.x % wgmma::THREADS / 8, piece = threadIdx.x % 8, column = k + piece * 8;
    const int left = column < C ? rows - first - row : 0;
    const Real* from = matrix + (left > 0 ? size_t(first + row) * C + column : 0);
    char* to = tile + wgmma::place(row, piece);
#pragma unroll
    for (int i = 0; i < ROWS; i += APART) {
        cp_async_16(to + i * wgmma::ROW_BYTES, from, i < left);
        if (i + APART < left) from += size_t(APART) * C;
    }
}

__device__ __forceinline__ void copy_stage(char* stage, const Tiles& tiles, const Real* x, const Real* weight, int2 origin,
                                           int step)
{
    copy_tile<BM>(stage, x, origin.x, tiles.M, step * wgmma::DEEP, tiles.C);
    copy_tile<BN>(stage + A_BYTES, weight, origin.y, tiles.OC, step * wgmma::DEEP, tiles.C);
    cp_async_commit();
}

__device__ __forceinline__ void multiply_stage(float (&sums)[BN / 2], const char* stage, bool add)
{
    const char* rows = stage + threadIdx.x / wgmma::THREADS * (64 * wgmma::ROW_BYTES);
    wgmma::begin();
#pragma unroll
    for (int step = 0; step < wgmma::DEEP / wgmma::STEP; step++)
        wgmma::multiply<BN>(sums, rows, stage + A_BYTES, step, add || step > 0);
    wgmma::commit();
}

// Two neighbouring numbers; their column is even.
__device__ __forceinline__ float2 two(const Real* from)
{
    const Vec<Real, 2> pair = *reinterpret_cast<const Vec<Real, 2>*>(from);
    return make_float2(to_float(pair[0]), to_float(pair[1]));
}

// Rows of multiples of 16 bytes: four lanes combine theirs.
__device__ __forceinline__ void store(const float (&sums)[BN / 2], const Tiles& tiles, int2 origin, const Real* bias, Real* out)
{
    const int t = lane_id() % 4,
              row = origin.x + threadIdx.x / wgmma::THREADS * 64 + wgmma::row_of(threadIdx.x % wgmma::THREADS, 0);
    Real* to = out + size_t(row) * tiles.OC + origin.y + t * 8;
#pragma unroll
    for (int i = 0; i < BN / 32; i++, to += 32) {
        float2 b[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int column = origin.y + i * 32 + j * 8 + t * 2;
            b[j] = bias && column < tiles.OC ? two(bias + column) : make_float2(0.0f, 0.0f);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t words[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int at = (i * 4 + j) * 4 + half * 2;
                words[j] = pack2<Real>(sums[at] + b[j].x, sums[at + 1] + b[j].y);
            }
            const uint4 piece = wgmma::gather(words);
            if (row + half * 8 < tiles.M && origin.y + i * 32 + t * 8 < tiles.OC)
                *reinterpret_cast<uint4*>(to + size_t(half) * 8 * tiles.OC) = piece;
        }
    }
}

// Rows of any length, element by element.
__device__ __forceinline__ void store_ragged(const float (&sums)[BN / 2], const Tiles& tiles, int2 origin, const Real* bias,
                                             Real* out)
{
    const int row = origin.x + threadIdx.x / wgmma::THREADS * 64 + wgmma::row_of(threadIdx.x % wgmma::THREADS, 0);
    const int first = origin.y + lane_id() % 4 * 2;
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        const int column = first + i / 4 * 8 + i % 2, own = row + i / 2 % 2 * 8;
        if (own < tiles.M && column < tiles.OC)
            out[size_t(own) * tiles.OC + column] = from_float<Real>(sums[i] + (bias ? to_float(bias[column]) : 0.0f));
    }
}

extern "C" __global__ void __launch_bounds__(COMPUTING + wgmma::THREADS, 1)
    matmul(const Real* x, const Real* weight, const Real* bias, Real* out, int M, int OC, int C)
{
    extern __shared__ char shared[];
    char* stages = shared + (1024 - reinterpret_cast<uintptr_t>(shared) % 1024) % 1024;  // where the swizzle pattern starts
    const Tiles tiles = {M, OC, C};
    const bool copying = threadIdx.x >= COMPUTING;
    float sums[BN / 2];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    if (threadIdx.x < STAGES)
        byte_barrier_init(full + threadIdx.x, wgmma::THREADS), byte_barrier_init(empty + threadIdx.x, COMPUTING / WARP_SIZE);
    __syncthreads();
    int all_steps = 0;  // steps so far, over all tiles
    if (copying) {
        wgmma::keep_registers<40>();
        // A stage is announced this many steps after its copy; one step more would be a deadlock, since the consumers could not
        // free a stage.
        constexpr int BEHIND = STAGES - 2;
        static_assert(BEHIND >= 1, "a stage at work, one that waits to be released, and one on its way");
        for (int tile = blockIdx.x; tile < tiles.count(); tile += gridDim.x)
            for (int step = 0; step < tiles.depth(); step++, all_steps++) {
                if (all_steps >= STAGES) byte_barrier_wait(empty + all_steps % STAGES, (all_steps / STAGES - 1) % 2);
                copy_stage(stages + all_steps % STAGES * STAGE_BYTES, tiles, x, weight, tiles.origin(tile), step);
                if (all_steps < BEHIND) continue;
                cp_async_wait<BEHIND>(), wgmma::publish();
                byte_barrier_arrive(full + (all_steps - BEHIND) % STAGES);
            }
        cp_async_wait<0>(), wgmma::publish();
        for (int left = max(0, all_steps - BEHIND); left < all_steps; left++) byte_barrier_arrive(full + left % STAGES);
        return;
    }
    wgmma::take_registers<232>();
    for (int tile = blockIdx.x; tile < tiles.count(); tile += gridDim.x) {
        for (int step = 0; step < tiles.depth(); step++, all_steps++) {
            byte_barrier_wait(full + all_steps % STAGES, all_steps / STAGES % 2);
            multiply_stage(sums, stages + all_steps % STAGES * STAGE_BYTES, step > 0);
            wgmma::await<1>(sums);
            if (step > 0 && lane_id() == 0) byte_barrier_arrive(empty + (all_steps - 1) % STAGES);
        }
        wgmma::await<0>(sums);
        if (lane_id() == 0) byte_barrier_arrive(empty + (all_steps - 1) % STAGES);
        if (OC % 8 == 0)
            store(sums, tiles, tiles.origin(tile), bias, out);
        else
            store_ragged(sums, tiles, tiles.origin(tile), bias, out);
    }
}
