/*---
from   = "token_logprob/04_tensor_cores"
rewrite = "The copy engine and wgmma replace the loads, the fragments and the schedule of blocks."
idea   = "The product of matmul/25 instead: the copy engine fills the stages, warpgroups multiply 128 x 256 tiles, and blocks are persistent over all slices. A tile's maximum is computed first, so that its exponentials need no branch and one rescaling."
expect = "The products alone take 1.0 ms for 8192 tokens at matmul/25's rate. A tile's 32768 exponentials are 2048 cycles of the special function units, against 12300 of products; one warpgroup ahead of the other hides about half: 1.1 to 1.2 ms."
found  = "1048 us for 8192 tokens in bf16 on an H200, as expected: rung 5 takes 1361, rung 4 2734. The lead gains nothing: 1057 us without it, 1058 with three steps."
dtypes = ["bf16", "f16"]  # in tf32 the copy engine truncates the operands, and the entropy exceeds its bound
arch_specific = true
needs  = ["sm >= 90 and sm < 100", "LEAD < STAGES", "C * sizeof_real % 16 == 0"]
[tune]
BN      = [256, 192, 128]
STAGES  = [4, 3]
LEAD    = [3, 0, 2, 1]
CLUSTER = [2, 1]
SLICES  = [8, 1, 4, 16]
[let]
per_slice = "ceil_div(ceil_div(V, BN), SLICES)"
slices    = "ceil_div(ceil_div(V, BN), per_slice)"
[bind]
M = "B * T"
slices = "slices"
per_slice = "per_slice"
[buffers]
own   = { dtype = "f32", shape = ["B * T"] }
parts = { dtype = "f32", shape = ["slices", "B * T", 4] }
[maps.x_map]
operand = "x"
dims    = ["B * T", "C"]
box     = [128, "128 // sizeof_real"]
swizzle = 128
[maps.weight_map]
operand = "weight"
box     = ["BN // CLUSTER", "128 // sizeof_real"]
swizzle = 128
[[launch]]
kernel = "target_logits"
grid   = "ceil_div(B * T, 8)"
block  = 256
[[launch]]
kernel = "token_logprob"
grid   = "CLUSTER * min(max(1, sms // CLUSTER), ceil_div(B * T, 128 * CLUSTER) * slices)"
block  = 384
cluster = "CLUSTER"
shared = "STAGES * (128 + BN) * 128 + 1024"
[[launch]]
kernel = "merge_slices"
grid   = "ceil_div(B * T, 128)"
block  = 128
[model]
serves = { score = "1 if gpu else 0" }
---*/
#include "hopper_tile.cuh"
#include "merge.cuh"

using namespace hopper_tile;

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

// Adds one of the thread's two rows of a tile; `left` columns of the tile, from the thread's first on, are valid.
template <bool WHOLE>
__device__ __forceinline__ void add_row(Statistics& row, const Sums& sums, int half, float limit, int target, int left)
{
    const auto logit = [&](int i) { return sums[i / 2 * 4 + half * 2 + i % 2]; };
    const auto column = [](int i) { return i / 2 * 8 + i % 2; };
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < BN / 4; i++)
        if (WHOLE || column(i) < left) top = fmaxf(top, logit(i));
    if (!WHOLE && left <= 0) return;
    row.raise(top);
    const float base = row.m * LOG2_E;
    float l = 0.0f, s = 0.0f;
    int above = 0;
#pragma unroll
    for (int i = 0; i < BN / 4; i++) {
        if (!WHOLE && column(i) >= left) continue;
        const float power = fmaf(logit(i), LOG2_E, -base), e = exp2f(power);
        l += e;
        s = fmaf(e, power, s);
        above += logit(i) > limit;
    }
    row.l += l, row.s += s * LN_2, row.above += above;
    if (unsigned(target) < BN) {  // the target itself does not count, however its sum was rounded
#pragma unroll
        for (int i = 0; i < BN / 4; i++)
            if (column(i) == target) row.above -= logit(i) > limit;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    token_logprob(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map, const int* targets,
                  const float* own, float4* parts, int M, int C, int V, int slices, int per_slice)
{
    extern __shared__ char shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    Ring ring(shared, full, empty);
    const int rank = cluster_rank(), clusters = gridDim.x / CLUSTER, steps = ceil_div(C, DEEP);
    const int tiles = ceil_div(V, BN), down = ceil_div(M, BM * CLUSTER);
    if (threadIdx.x == 0) ring.set_up(COMPUTING / WARP_SIZE * CLUSTER);
    cluster_sync();

    if (threadIdx.x >= COMPUTING) {
        warpgroup_give_registers<GIVEN>();
        if (threadIdx.x == COMPUTING)
            for (int unit = blockIdx.x / CLUSTER; unit < down * slices; unit += clusters) {
                const int m0 = (unit % down * CLUSTER + rank) * BM, slice = unit / down;
                for (int tile = slice * per_slice; tile < min(tiles, (slice + 1) * per_slice); tile++)
                    for (int step = 0; step < steps; step++, ring.advance()) {
                        ring.open();
                        tensor_load(ring.a(), &x_map, ring.arrival(), step * DEEP, m0);
                        tensor_load_shared<CLUSTER>(ring.b(), &weight_map, ring.arrival(), rank, BN, step * DEEP, tile * BN);
                    }
            }
    } else {
        warpgroup_take_registers<TAKEN>();
        Lead lead(steps);
        Sums sums;
        for (int unit = blockIdx.x / CLUSTER; unit < down * slices; unit += clusters) {
            const int m0 = (unit % down * CLUSTER + rank) * BM + threadIdx.x / WARPGROUP * 64, slice = unit / down;
            Statistics mine[2];
            int target[2];
            float limit[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int token = min(m0 + warpgroup_row(half), M - 1);
                target[half] = targets[token] - warpgroup_column(), limit[half] = own[token];
            }
            for (int tile = slice * per_slice; tile < min(tiles, (slice + 1) * per_slice); tile++) {
                multiply_tile(sums, ring, steps, [&](uint64_t* empty) { lead.step(), ReleaseEverywhere<CLUSTER>()(empty); });
                const int n0 = tile * BN, left = V - n0 - warpgroup_column();
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (V - n0 >= BN)
                        add_row<true>(mine[half], sums, half, limit[half], target[half] - n0, left);
                    else
                        add_row<false>(mine[half], sums, half, limit[half], target[half] - n0, left);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const Statistics all = merged(mine[half], 4);
                const int token = m0 + warpgroup_row(half);
                if (threadIdx.x % 4 == 0 && token < M) store_part(parts, all, slice, token, M);
            }
        }
    }
    cluster_sync();  // a block's shared memory must stay valid until the other blocks' copies and arrivals have reached it
}

extern "C" __global__ void target_logits(const Real* x, const Real* weight, const int* targets, float* own, int M, int C)
{
    find_target_logits(x, weight, targets, own, M, C);
}

extern "C" __global__ void merge_slices(const float4* parts, const float* own, float* logprob, float* entropy, int* rank, int M,
                                        int slices)
{
    merge_all_slices(parts, own, logprob, entropy, rank, M, slices);
}
