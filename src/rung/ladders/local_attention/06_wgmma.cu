/*---
idea   = "The window's blocks on Hopper's tensor cores: tensor maps load tiles of Q, K and V, wgmma multiplies them, and only blocks of keys at an edge of the window are masked."
expect = "A window of 128 is two or three blocks of 64 keys: thread blocks are short, and load latency dominates, which other resident blocks hide. Half of rung 4's time at b8t1024, whose 50 MB take 12 us."
found  = "23.9 us at b8t1024 in bf16 on an H200 with two stages and four blocks on a multiprocessor, 1.34x over rung 4 and 1.11x over rung 5, not the half of rung 4's time that was expected. Three stages take 25.6 us, blocks of 128 keys 27.6 us: what matters is the number of resident blocks. 29.8 us for 16 heads of 8192, 1.15x over rung 5."
provenance = "The inside of attention/30_wgmma."
from   = "attention/30"
inherit = ["arch_specific", "options", "define", "maps", "launch"]
dtypes = ["bf16", "f16"]
needs  = ["sm >= 90 and sm < 100", "window >= 1", "globals == 0", "HS % 16 == 0", "HS <= 128", "scale > 0", "q_stride_T % 8 == 0", "BC % 64 == 0", "GROUPS * BLOCKS * (5 * BC + 4 * HS + 300) <= 4096"]  # registers

[tune]
GROUPS = [1, 2]  # warpgroups of a block: 64 queries each
BC     = [64, 128]
STAGES = [3, 2]
BLOCKS = [3, 4, 2]  # on a multiprocessor at once, for the compiler to fit its registers to

[[launch]]
kernel = "local_attention"
---*/
#include "attention_tile.cuh"

constexpr int BR = 64 * GROUPS;  // queries of a block

struct Shared
{
    Real q[PARTS][BR * 64], k[STAGES][PARTS][BC * 64], v[STAGES][PARTS][BC * 64];
    uint64_t q_full, full[STAGES];
};

// Hides the keys that have left the window of each query.
__device__ __forceinline__ void mask_past(float (&s)[BC / 2], int row0, int key0, int window)
{
    const int first = key0 + warpgroup_column();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int gone = row0 + warpgroup_row(h) - window + 1 - first;
#pragma unroll
        for (int i = 2 * h; i < BC / 2; i += 4) {
            if (i / 4 * 8 < gone) s[i] = -INFINITY;
            if (i / 4 * 8 + 1 < gone) s[i + 1] = -INFINITY;
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPGROUP* GROUPS, BLOCKS)
    local_attention(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                    const __grid_constant__ TensorMap v_map, Real* __restrict__ out, float* __restrict__ lse, int T, int NH,
                    int window, float scale)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int b = blockIdx.x / NH, nh = blockIdx.x % NH, row0 = blockIdx.y * BR;
    const int rows_at = row0 + threadIdx.x / WARPGROUP * 64;  // this warpgroup's
    const auto oldest = [&](int row) { return max(0, row - window + 1); };
    // Blocks of keys from the last to the first: this block's, and those of this warpgroup.
    const int last = ceil_div(min(T, row0 + BR), BC) - 1, steps = last - oldest(row0) / BC + 1;
    const int mine_last = ceil_div(min(T, rows_at + 64), BC) - 1, mine_first = oldest(rows_at) / BC;
    const float scale2 = scale * LOG2_E;

    auto load = [&](int step) {
        const int stage = step % STAGES, key0 = (last - step) * BC;
        byte_barrier_expect(&shared.full[stage], sizeof(shared.k[0]) + sizeof(shared.v[0]));
        load_rows<BC>(shared.k[stage], &k_map, &shared.full[stage], key0, nh, b);
        load_rows<BC>(shared.v[stage], &v_map, &shared.full[stage], key0, nh, b);
    };
    if (threadIdx.x == 0) {
        byte_barrier_init(&shared.q_full);
        for (int stage = 0; stage < STAGES; stage++) byte_barrier_init(&shared.full[stage]);
        byte_barrier_expect(&shared.q_full, sizeof(shared.q));
        load_rows<BR>(shared.q, &q_map, &shared.q_full, row0, nh, b);
        for (int step = 0; step < min(STAGES, steps); step++) load(step);
    }
    __syncthreads();

    SoftmaxRows rows;
    float s[BC / 2], o[HS / 2] = {}, shrink[2];
    uint32_t p[BC / 16][4];
    byte_barrier_wait(&shared.q_full, 0);
    for (int step = 0; step < steps; step++) {
        const int stage = step % STAGES, block = last - step, key0 = block * BC;
        byte_barrier_wait(&shared.full[stage], step / STAGES % 2);
        // perhaps never false: one warpgroup has all the keys that its block has
        if (rows_at < T && block >= mine_first && block <= mine_last) {
            start_scores<BR>(s, shared.q, threadIdx.x / WARPGROUP * 64, shared.k[stage]);
            warpgroup_wait<0>();
            if (block == mine_last) mask_scores(s, rows_at, key0, T, true);  // it contains each query's own key
            if (key0 < rows_at + 64 - window) mask_past(s, rows_at, key0, window);
            rows.add(s, shrink, scale2);
            scale_rows(o, shrink);
            pack_probabilities(p, s);
            start_values(o, p, shared.v[stage]);
            warpgroup_wait<0>();
        }
        if (step + STAGES < steps) {
            __syncthreads();  // every warpgroup has read this stage
            if (threadIdx.x == 0) load(step + STAGES);
        }
    }
    rows.finish();
    store_rows(out, lse, o, rows, rows_at, T, nh, NH, b, scale);
}
