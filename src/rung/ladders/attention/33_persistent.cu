/*---
idea   = "Persistent blocks. As many blocks as fit take query tiles from a counter, the longest first, and the producer fetches the next tile's Q, K and V while the consumers finish this one."
expect = "A block of rung 32 begins with an empty pipeline and ends with a softmax, a product and a store that nothing hides: at b8t1024 that is two of some seven steps. A gain of a quarter there, next to nothing at 8192 keys, where only the last wave gains."
found  = "The fastest at head size 128: 71.6 us (b4, T 2048, 8 heads) in bf16 on an H200, 1.18x cuDNN's speed, 1.03x rung 32. At b8t1024 45.7 us, 1.06x over rung 32 and not a quarter, slower than rung 30's 43.5. At 16 heads of 8192 303 us, slower than rung 32's 285."
from   = "attention/32"
inherit = ["arch_specific", "needs", "options", "define", "tune", "maps", "launch"]
dtypes = ["bf16", "f16"]

[buffers]
counter = { shape = [1], dtype = "i32", zero = "once" }  # of assigned tiles; the last one resets it

[[launch]]
kernel = "flash"
grid   = "min(sms * BLOCKS, B * NH * ceil_div(T, 64 * GROUPS))"
shared = "ceil_div(HS, 64) * 128 * (64 * GROUPS + 2 * STAGES * BC) + 8 * (3 + 4 * STAGES)"
[model]
serves = { prompt = "3 if rows >= 2048 else 0" }
---*/
#include "attention_tile.cuh"

constexpr int BR = 64 * GROUPS;  // queries of a block
// The block's registers are redistributed: the producer keeps few, and the consumers take the rest.
constexpr int AT_START = 65536 / (WARPGROUP * (GROUPS + 1) * BLOCKS) / 8 * 8, PRODUCER = 24;
constexpr int REST = ((GROUPS + 1) * AT_START - PRODUCER) / GROUPS / 8 * 8, CONSUMER = REST < 240 ? REST : 240;

struct Shared
{
    Real q[PARTS][BR * 64], k[STAGES][PARTS][BC * 64], v[STAGES][PARTS][BC * 64];
    uint64_t q_full, q_free, k_full[STAGES], k_free[STAGES], v_full[STAGES], v_free[STAGES];
    int tile;  // the tile that q belongs to; -1 when no tile is left
};

// A stage of step i, and the parity of the round in which it is full; it was free in the round before.
__device__ __forceinline__ int stage_of(unsigned i) { return i % STAGES; }
__device__ __forceinline__ unsigned round_of(unsigned i) { return i / STAGES % 2; }

// Lanes of a warp that arrive when it has finished with a stage: one, or all for racecheck, which does not recognise that
// __syncwarp orders a lane's read (of the tile's number) before another lane's arrival.
#ifdef RUNG_SANITIZED
enum { ARRIVING = WARP_SIZE };
#else
enum { ARRIVING = 1 };
#endif

// This warp has finished with a stage.
__device__ __forceinline__ void release(uint64_t* barrier)
{
    __syncwarp();
    if (ARRIVING > 1 || threadIdx.x % WARP_SIZE == 0) byte_barrier_arrive(barrier);
}

extern "C" __global__ void __launch_bounds__(WARPGROUP*(GROUPS + 1), BLOCKS)
    flash(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
          const __grid_constant__ TensorMap v_map, Real* __restrict__ out, float* __restrict__ lse, int* counter, int B, int T,
          int NH, float scale, int causal)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int group = threadIdx.x / WARPGROUP, tiles = B * NH * ceil_div(T, BR);
    const auto row_of = [&](int tile) { return (ceil_div(T, BR) - 1 - tile / (B * NH)) * BR; };  // the longest rows first
    const auto blocks_for = [&](int rows) { return ceil_div(causal ? min(T, rows) : T, BC); };

    if (threadIdx.x == 0) {
        byte_barrier_init(&shared.q_full);
        byte_barrier_init(&shared.q_free, GROUPS * WARPGROUP / WARP_SIZE * ARRIVING);
        for (int stage = 0; stage < STAGES; stage++) {
            byte_barrier_init(&shared.k_full[stage]);
            byte_barrier_init(&shared.v_full[stage]);
            byte_barrier_init(&shared.k_free[stage], GROUPS * WARPGROUP / WARP_SIZE * ARRIVING);
            byte_barrier_init(&shared.v_free[stage], GROUPS * WARPGROUP / WARP_SIZE * ARRIVING);
        }
    }
    __syncthreads();

    if (group == GROUPS) {
        warpgroup_give_registers<PRODUCER>();
        if (threadIdx.x % WARPGROUP > 0) return;
        int first = 0;  // step of this tile
        for (int tile = blockIdx.x, tiles_done = 0;; tiles_done++) {
            byte_barrier_wait(&shared.q_free, tiles_done % 2 ^ 1);
            shared.tile = tile < tiles ? tile : -1;
            if (tile >= tiles) break;
            const int row0 = row_of(tile), nh = tile % (B * NH) % NH, b = tile % (B * NH) / NH, blocks = blocks_for(row0 + BR);
            byte_barrier_expect(&shared.q_full, sizeof(shared.q));
            load_rows<BR>(shared.q, &q_map, &shared.q_full, row0, nh, b);
            const int given = atomicAdd(counter, 1);
            for (int i = 0; i <= blocks; i++) {  // from the last block of keys to the first, with values one step later
                if (i < blocks) {
                    const int stage = stage_of(first + i);
                    byte_barrier_wait(&shared.k_free[stage], round_of(first + i) ^ 1);
                    byte_barrier_expect(&shared.k_full[stage], sizeof(shared.k[0]));
                    load_rows<BC>(shared.k[stage], &k_map, &shared.k_full[stage], (blocks - 1 - i) * BC, nh, b);
                }
                if (i > 0) {
                    const int stage = stage_of(first + i - 1);
                    byte_barrier_wait(&shared.v_free[stage], round_of(first + i - 1) ^ 1);
                    byte_barrier_expect(&shared.v_full[stage], sizeof(shared.v[0]));
                    load_rows<BC>(shared.v[stage], &v_map, &shared.v_full[stage], (blocks - i) * BC, nh, b);
                }
            }
            first += blocks;
            tile = gridDim.x + given;
            if (given == tiles - 1) *counter = 0;  // every tile has requested its successor
        }
        byte_barrier_arrive(&shared.q_full);
    } else {
        warpgroup_take_registers<CONSUMER>();
        const float scale2 = scale * LOG2_E;
        // Warpgroups take turns to multiply: named barrier g + 1 signals group g's turn.
        const auto take_turn = [&] {
            if (TURNS && GROUPS > 1) sync_some<2 * WARPGROUP>(group + 1);
        };
        const auto pass_turn = [&] {
            if (TURNS && GROUPS > 1) arrive_some<2 * WARPGROUP>((group + 1) % GROUPS + 1);
        };
        if (group == GROUPS - 1) pass_turn();

        int first = 0;  // step of this tile
        for (int tiles_done = 0;; tiles_done++) {
            byte_barrier_wait(&shared.q_full, tiles_done % 2);
            const int tile = shared.tile;
            if (tile < 0) break;
            const int row0 = row_of(tile), nh = tile % (B * NH) % NH, b = tile % (B * NH) / NH, rows_at = row0 + group * 64;
            const int end = first + blocks_for(row0 + BR), mine = rows_at < T ? blocks_for(rows_at + 64) : 0;
            SoftmaxRows rows;
            float s[BC / 2], o[HS / 2] = {}, shrink[2];
            uint32_t p[BC / 16][4];
            int i = first;
            for (; i < end - mine; i++) {  // keys after all queries of this group
                byte_barrier_wait(&shared.k_full[stage_of(i)], round_of(i));
                release(&shared.k_free[stage_of(i)]);
                byte_barrier_wait(&shared.v_full[stage_of(i)], round_of(i));
                release(&shared.v_free[stage_of(i)]);
                take_turn();
                pass_turn();
            }
            if (i < end) {
                byte_barrier_wait(&shared.k_full[stage_of(i)], round_of(i));
                take_turn();
                start_scores<BR>(s, shared.q, group * 64, shared.k[stage_of(i)]);
                pass_turn();
                warpgroup_wait<0>();
                release(&shared.k_free[stage_of(i)]);
                if (i + 1 == end) release(&shared.q_free);
                mask_scores(s, rows_at, (mine - 1) * BC, T, causal);
                rows.add(s, shrink, scale2);
                pack_probabilities(p, s);
                if (i + 1 < end) byte_barrier_wait(&shared.k_full[stage_of(i + 1)], round_of(i + 1));
                while (++i < end) {  // the scores of these keys, together with the values of the previous ones
                    const int stage = stage_of(i), before = stage_of(i - 1);
                    byte_barrier_wait(&shared.v_full[before], round_of(i - 1));
                    take_turn();
                    start_scores<BR>(s, shared.q, group * 64, shared.k[stage]);
                    start_values(o, p, shared.v[before]);
                    pass_turn();
                    warpgroup_wait<1>();
                    release(&shared.k_free[stage]);
                    if (i + 1 == end) release(&shared.q_free);
                    rows.add(s, shrink, scale2);
                    // A loop here keeps the compiler from moving the second wait before the exponentials.
                    if (i + 1 < end) byte_barrier_wait(&shared.k_full[stage_of(i + 1)], round_of(i + 1));
                    warpgroup_wait<0>();
                    release(&shared.v_free[before]);
                    scale_rows(o, shrink);
                    pack_probabilities(p, s);
                }
                byte_barrier_wait(&shared.v_full[stage_of(i - 1)], round_of(i - 1));
                start_values(o, p, shared.v[stage_of(i - 1)]);
                warpgroup_wait<0>();
                release(&shared.v_free[stage_of(i - 1)]);
            } else {
                release(&shared.q_free);
            }
            rows.finish();
            store_rows(out, lse, o, rows, rows_at, T, nh, NH, b, scale);
            first = end;
        }
    }
}
