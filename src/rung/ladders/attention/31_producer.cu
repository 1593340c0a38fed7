/*---
idea   = "Warp specialisation: a producer that only issues copies and gives up its registers, and consumer warpgroups that only compute and take them. mbarriers signal full and free stages, for K and V separately, and no barrier stops the whole block any more."
expect = "Rung 30 stops all warps at each block of keys, and one of its threads issues copies between two products. With 160 or 240 registers a consumer holds S and P of 128 keys without spilling: a gain of a tenth."
found  = "No gain at b8t1024: 43.6 us in bf16 on an H200 with two blocks of 64 keys, like rung 30, and 50 to 56 us with blocks of 128. With many keys 3 %: 290 us for 16 heads of 8192 against 298, with three consumers. At head size 128, for which rung 30 was not tuned, 79.9 us (b4, T 2048), 1.06x cuDNN's speed."
from   = "attention/30"
inherit = ["arch_specific", "options", "define", "tune", "maps", "launch"]
dtypes = ["bf16", "f16"]
needs  = ["sm >= 90 and sm < 100", "HS % 16 == 0", "HS <= 128", "scale > 0", "q_stride_T % 8 == 0", "BC % 64 == 0", "GROUPS * BLOCKS * (5 * BC + 4 * HS + 300) <= 4096", "BC // 2 + 26 <= 512 // (BLOCKS * (GROUPS + 1)) // 8 * 8"]  # registers: of a block, and of one product

[tune]
GROUPS = [2, 3, 1]  # consumer warpgroups of a block: 64 queries each
BLOCKS = [1, 2]

[[launch]]
kernel = "flash"
block  = "128 * (GROUPS + 1)"
shared = "ceil_div(HS, 64) * 128 * (64 * GROUPS + 2 * STAGES * BC) + 8 * (1 + 4 * STAGES)"
[model]
serves = { prompt = "3 if rows < 2048 else 0" }
---*/
#include "attention_tile.cuh"

constexpr int BR = 64 * GROUPS;  // queries of a block
// The block's registers are redistributed: the producer keeps few, and the consumers take the rest.
constexpr int AT_START = 65536 / (WARPGROUP * (GROUPS + 1) * BLOCKS) / 8 * 8, PRODUCER = 24;
constexpr int REST = ((GROUPS + 1) * AT_START - PRODUCER) / GROUPS / 8 * 8, CONSUMER = REST < 240 ? REST : 240;

struct Shared
{
    Real q[PARTS][BR * 64], k[STAGES][PARTS][BC * 64], v[STAGES][PARTS][BC * 64];
    uint64_t q_full, k_full[STAGES], k_free[STAGES], v_full[STAGES], v_free[STAGES];
};

// A stage of step i, and the parity of the round in which it is full; it was free in the round before.
__device__ __forceinline__ int stage_of(unsigned i) { return i % STAGES; }
__device__ __forceinline__ unsigned round_of(unsigned i) { return i / STAGES % 2; }

// This warp has finished with a stage.
__device__ __forceinline__ void release(uint64_t* barrier)
{
    __syncwarp();
    if (threadIdx.x % WARP_SIZE == 0) byte_barrier_arrive(barrier);
}

extern "C" __global__ void __launch_bounds__(WARPGROUP*(GROUPS + 1), BLOCKS)
    flash(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
          const __grid_constant__ TensorMap v_map, Real* __restrict__ out, float* __restrict__ lse, int T, int NH, float scale,
          int causal)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int b = blockIdx.x / NH, nh = blockIdx.x % NH, row0 = (gridDim.y - 1 - blockIdx.y) * BR;  // the longest rows first
    const int group = threadIdx.x / WARPGROUP;
    const auto blocks_for = [&](int rows) { return ceil_div(causal ? min(T, rows) : T, BC); };
    const int blocks = blocks_for(row0 + BR);

    if (threadIdx.x == 0) {
        byte_barrier_init(&shared.q_full);
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
        byte_barrier_expect(&shared.q_full, sizeof(shared.q));
        load_rows<BR>(shared.q, &q_map, &shared.q_full, row0, nh, b);
        for (int i = 0; i < blocks; i++) {  // from the last block of keys to the first, so that masked blocks come first
            const int stage = stage_of(i), key0 = (blocks - 1 - i) * BC;
            byte_barrier_wait(&shared.k_free[stage], round_of(i) ^ 1);
            byte_barrier_expect(&shared.k_full[stage], sizeof(shared.k[0]));
            load_rows<BC>(shared.k[stage], &k_map, &shared.k_full[stage], key0, nh, b);
            byte_barrier_wait(&shared.v_free[stage], round_of(i) ^ 1);
            byte_barrier_expect(&shared.v_full[stage], sizeof(shared.v[0]));
            load_rows<BC>(shared.v[stage], &v_map, &shared.v_full[stage], key0, nh, b);
        }
    } else {
        warpgroup_take_registers<CONSUMER>();
        const int rows_at = row0 + group * 64, mine = rows_at < T ? blocks_for(rows_at + 64) : 0;
        const float scale2 = scale * LOG2_E;
        SoftmaxRows rows;
        float s[BC / 2], o[HS / 2] = {}, shrink[2];
        uint32_t p[BC / 16][4];
        int i = 0;
        for (; i < blocks - mine; i++) {  // keys after all queries of this group
            byte_barrier_wait(&shared.k_full[stage_of(i)], round_of(i));
            release(&shared.k_free[stage_of(i)]);
            byte_barrier_wait(&shared.v_full[stage_of(i)], round_of(i));
            release(&shared.v_free[stage_of(i)]);
        }
        byte_barrier_wait(&shared.q_full, 0);
        for (; i < blocks; i++) {
            const int stage = stage_of(i), block = blocks - 1 - i;
            byte_barrier_wait(&shared.k_full[stage], round_of(i));
            start_scores<BR>(s, shared.q, group * 64, shared.k[stage]);
            warpgroup_wait<0>();
            release(&shared.k_free[stage]);
            if (block == mine - 1) mask_scores(s, rows_at, block * BC, T, causal);
            rows.add(s, shrink, scale2);
            scale_rows(o, shrink);
            pack_probabilities(p, s);
            byte_barrier_wait(&shared.v_full[stage], round_of(i));
            start_values(o, p, shared.v[stage]);
            warpgroup_wait<0>();
            release(&shared.v_free[stage]);
        }
        rows.finish();
        store_rows(out, lse, o, rows, rows_at, T, nh, NH, b, scale);
    }
}
