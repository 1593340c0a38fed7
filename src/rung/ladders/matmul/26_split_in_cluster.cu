/*---
idea   = "Few rows: small tiles, all stages of the depth requested at once, and the depth split over the blocks of a cluster, which add their sums through distributed shared memory in the order of their ranks."
expect = "256x768x2304 moves 5 MB, 1.3 us, but 36 tiles of 128 x 128 leave three quarters of the multiprocessors idle and 12 steps follow each other. 128 blocks of 128 x 72 and half the depth fill the GPU once, with one memory latency: launch, one memory latency, 150 KB from L2, and one exchange, 5 us, like cublasLt."
found  = "6.59 us at 256x768x2304 in bf16 on an H200, 0.88x cublasLt's 5.79, and 1.54x over Triton. Without splitting the depth the best is 7.17 us; six blocks for the depth take 10.1 us. 64x768x3072: 5.53 us, 0.96x cublasLt."
from   = "matmul/20"
dtypes = ["bf16", "f16", "tf32"]
arch_specific = true
needs  = ["sm >= 90 and sm < 100", "C * sizeof_real % 16 == 0", "SHARED <= 231424", "PARTIAL <= STAGES * (64 * GROUPS + BN) * 128"]
[tune]
BN     = [72, 48, 96, 24, 144]
GROUPS = [2, 1]
SPLIT  = [2, 1, 3, 4, 6]
STAGES = [6, 4, 3, 8, 12]
[let]
SHARED  = "STAGES * (64 * GROUPS + BN) * 128 + 1024"
PARTIAL = "64 * GROUPS * (BN + 8) * 4"
[bind]
M = "B * T"
[maps.x_map]
operand = "x"
dims    = ["B * T", "C"]
box     = ["64 * GROUPS", "128 // sizeof_real"]
swizzle = 128
tf32    = true
[maps.weight_map]
operand = "weight"
box     = ["BN", "128 // sizeof_real"]
swizzle = 128
tf32    = true
[[launch]]
kernel = "matmul"
grid   = ["SPLIT * ceil_div(B * T, 64 * GROUPS)", "ceil_div(OC, BN)"]
block  = "128 * GROUPS"
cluster = "SPLIT"
shared = "SHARED"
---*/
#include "block_cluster.cuh"
#include "tensor_map.cuh"
#include "warpgroup.cuh"

constexpr int BM = 64 * GROUPS, THREADS = GROUPS * WARPGROUP, A_BYTES = BM * SWIZZLE_ROW,
              STAGE_BYTES = A_BYTES + BN * SWIZZLE_ROW;
constexpr int PITCH = BN % 16 == 8 ? BN : BN + 8;  // floats from row to row: 8 more than a multiple of 16 has no bank conflicts
constexpr int PIECES = BM * BN / 4;                // of four sums

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map, const Real* bias, Real* out,
           int M, int OC, int C)
{
    extern __shared__ char shared[];
    __shared__ uint64_t full[STAGES];
    char* stages = shared + (1024 - reinterpret_cast<uintptr_t>(shared) % 1024) % 1024;
    const int rank = cluster_rank(), m0 = blockIdx.x / SPLIT * BM, n0 = blockIdx.y * BN, group = warp_id() / 4;
    const int all = ceil_div(C, DEEP), first = all * rank / SPLIT, steps = all * (rank + 1) / SPLIT - first;

    auto load = [&](int step) {
        char* stage = stages + step % STAGES * STAGE_BYTES;
        uint64_t* barrier = full + step % STAGES;
        byte_barrier_expect(barrier, STAGE_BYTES);
        tensor_load(stage + A_BYTES, &weight_map, barrier, (first + step) * DEEP, n0);
        tensor_load(stage, &x_map, barrier, (first + step) * DEEP, m0);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) byte_barrier_init(full + i);
        for (int step = 0; step < min(STAGES, steps); step++) load(step);
    }
    __syncthreads();

    float sums[BN / 2];
    for (int step = 0; step < steps; step++) {
        const char* stage = stages + step % STAGES * STAGE_BYTES;
        const SharedTile a = tile_along_depth(stage + group * 64 * SWIZZLE_ROW), b = tile_along_depth(stage + A_BYTES);
        byte_barrier_wait(full + step % STAGES, step / STAGES % 2);
        warpgroup_begin();
#pragma unroll
        for (int k = 0; k < SWIZZLE_ROW; k += PRODUCT_STEP) warpgroup_multiply<BN>(sums, a + k, b + k, step > 0 || k > 0);
        warpgroup_commit();
        if (step > 0 && step - 1 + STAGES < steps) {  // the previous step's stage is refilled
            warpgroup_wait<1>();
            __syncthreads();
            if (threadIdx.x == 0) load(step - 1 + STAGES);
        }
    }
    warpgroup_wait<0>();
    warpgroup_settle(sums);

    // Every block writes its sums to the memory of its stages, and adds up its share of the tile's pieces over all blocks.
    __syncthreads();
    float* partial = reinterpret_cast<float*>(stages);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
            *reinterpret_cast<float2*>(partial + (group * 64 + warpgroup_row(half)) * PITCH + j * 8 + warpgroup_column()) =
                steps > 0 ? make_float2(sums[j * 4 + half * 2], sums[j * 4 + half * 2 + 1]) : make_float2(0.0f, 0.0f);
    cluster_sync();
    uint32_t from[SPLIT];
#pragma unroll
    for (int i = 0; i < SPLIT; i++) from[i] = cluster_address(partial, i);
    // perhaps never skipped: a block has at least one piece per thread, perhaps never one turn: mostly several
    for (int piece = PIECES * rank / SPLIT + threadIdx.x; piece < PIECES * (rank + 1) / SPLIT; piece += THREADS) {
        const int row = piece / (BN / 4), column = piece % (BN / 4) * 4;
        float4 parts[SPLIT];
#pragma unroll
        for (int i = 0; i < SPLIT; i++) parts[i] = cluster_load(from[i] + (row * PITCH + column) * 4);
        if (m0 + row >= M) continue;
        Vec<Real, 4> result;
        Real* to = out + size_t(m0 + row) * OC + n0 + column;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float sum = bias && n0 + column + e < OC ? to_float(bias[n0 + column + e]) : 0.0f;
#pragma unroll
            for (int i = 0; i < SPLIT; i++) sum += e == 0 ? parts[i].x : e == 1 ? parts[i].y : e == 2 ? parts[i].z : parts[i].w;
            result[e] = from_float<Real>(sum);
        }
        if (OC % 4 == 0 && n0 + column < OC)
            *reinterpret_cast<Vec<Real, 4>*>(to) = result;
        else
            for (int e = 0; e < 4; e++)
                if (n0 + column + e < OC) to[e] = result[e];
    }
    cluster_sync();  // a block's shared memory must stay valid until the others have read it
}
