/*---
idea   = "Overlap of exponentials and products at two levels. Within a warpgroup the next scores are issued before the product P V, so that the softmax runs during P V; and warpgroups take turns (ping-pong), so that one multiplies while the others compute their softmax."
expect = "At head size 64 the exponentials of a tile occupy the special function units as long as its products occupy the tensor cores, 512 cycles each for 64 x 128: in rung 31 these times add up whenever its warpgroups run in step. Overlapped, up to a third is saved."
found  = "A gain with many keys: 285 us for 16 heads of 8192 in bf16 on an H200, 1.20x cuDNN's speed, 1.02x rung 31, with or without turns. At head size 128 73.7 us with turns and 78.1 without, 1.08x over rung 31. At b8t1024 48.6 us, slower than rung 30's 43.5: nowhere a third, since blocks that share a multiprocessor overlap already."
from   = "attention/31"
inherit = ["arch_specific", "options", "define", "tune", "maps", "launch"]
dtypes = ["bf16", "f16"]
needs  = ["sm >= 90 and sm < 100", "HS % 16 == 0", "HS <= 128", "scale > 0", "q_stride_T % 8 == 0", "BC % 64 == 0", "GROUPS * BLOCKS <= 3", "GROUPS * (3 * BC + 2 * HS + 128) <= 4 * (512 // BLOCKS - 24)"]  # registers

[tune]
TURNS  = [1, 0]
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
        for (int i = 0; i <= blocks; i++) {  // from the last block of keys to the first, with values one step later
            if (i < blocks) {
                const int stage = stage_of(i);
                byte_barrier_wait(&shared.k_free[stage], round_of(i) ^ 1);
                byte_barrier_expect(&shared.k_full[stage], sizeof(shared.k[0]));
                load_rows<BC>(shared.k[stage], &k_map, &shared.k_full[stage], (blocks - 1 - i) * BC, nh, b);
            }
            if (i > 0) {
                const int stage = stage_of(i - 1);
                byte_barrier_wait(&shared.v_free[stage], round_of(i - 1) ^ 1);
                byte_barrier_expect(&shared.v_full[stage], sizeof(shared.v[0]));
                load_rows<BC>(shared.v[stage], &v_map, &shared.v_full[stage], (blocks - i) * BC, nh, b);
            }
        }
    } else {
        warpgroup_take_registers<CONSUMER>();
        const int rows_at = row0 + group * 64, mine = rows_at < T ? blocks_for(rows_at + 64) : 0;
        const float scale2 = scale * LOG2_E;
        // Warpgroups take turns to multiply: named barrier g + 1 signals group g's turn.
        const auto take_turn = [&] {
            if (TURNS && GROUPS > 1) sync_some<2 * WARPGROUP>(group + 1);
        };
        const auto pass_turn = [&] {
            if (TURNS && GROUPS > 1) arrive_some<2 * WARPGROUP>((group + 1) % GROUPS + 1);
        };
        if (group == GROUPS - 1) pass_turn();

        SoftmaxRows rows;
        float s[BC / 2], o[HS / 2] = {}, shrink[2];
        uint32_t p[BC / 16][4];
        int i = 0;
        for (; i < blocks - mine; i++) {  // keys after all queries of this group
            byte_barrier_wait(&shared.k_full[stage_of(i)], round_of(i));
            release(&shared.k_free[stage_of(i)]);
            byte_barrier_wait(&shared.v_full[stage_of(i)], round_of(i));
            release(&shared.v_free[stage_of(i)]);
            take_turn();
            pass_turn();
        }
        if (i < blocks) {
            byte_barrier_wait(&shared.q_full, 0);
            byte_barrier_wait(&shared.k_full[stage_of(i)], round_of(i));
            take_turn();
            start_scores<BR>(s, shared.q, group * 64, shared.k[stage_of(i)]);
            pass_turn();
            warpgroup_wait<0>();
            release(&shared.k_free[stage_of(i)]);
            mask_scores(s, rows_at, (mine - 1) * BC, T, causal);
            rows.add(s, shrink, scale2);
            pack_probabilities(p, s);
            if (i + 1 < blocks) byte_barrier_wait(&shared.k_full[stage_of(i + 1)], round_of(i + 1));
            while (++i < blocks) {  // the scores of these keys, together with the values of the previous ones
                const int stage = stage_of(i), before = stage_of(i - 1);
                byte_barrier_wait(&shared.v_full[before], round_of(i - 1));
                take_turn();
                start_scores<BR>(s, shared.q, group * 64, shared.k[stage]);
                start_values(o, p, shared.v[before]);
                pass_turn();
                warpgroup_wait<1>();
                release(&shared.k_free[stage]);
                rows.add(s, shrink, scale2);
                // A loop here keeps the compiler from moving the second wait before the exponentials.
                if (i + 1 < blocks) byte_barrier_wait(&shared.k_full[stage_of(i + 1)], round_of(i + 1));
                warpgroup_wait<0>();
                release(&shared.v_free[before]);
                scale_rows(o, shrink);
                pack_probabilities(p, s);
            }
            byte_barrier_wait(&shared.v_full[stage_of(i - 1)], round_of(i - 1));
            start_values(o, p, shared.v[stage_of(i - 1)]);
            warpgroup_wait<0>();
        }
        rows.finish();
        store_rows(out, lse, o, rows, rows_at, T, nh, NH, b, scale);
    }
}
