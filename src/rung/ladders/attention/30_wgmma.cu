/*---
idea   = "Hopper's wgmma: the copy engine (TMA) loads whole tiles of Q, K and V from the packed QKV through tensor maps, and wgmma reads them from shared memory; only P comes from registers, where S was computed."
expect = "mma.sync needs ldmatrix for every operand and reaches half of the tensor cores' rate; with two blocks of two warpgroups per multiprocessor one computes exponentials while another multiplies. Faster than rung 29, whose compiler does the same with other copies: 45 us at b8t1024 in bf16."
found  = "43.5 us at b8t1024 in bf16 on an H200 (one warpgroup, 128 keys, three blocks on a multiprocessor): 1.10x over rung 29 and over cuDNN, as expected. 298 us for 16 heads of 8192, 1.07x over rung 29. With blocks of 96 keys some queries saw no key of their first block and became NaN, so BC is now a multiple of 64."
dtypes = ["bf16", "f16"]
arch_specific = true
needs  = ["sm >= 90 and sm < 100", "HS % 16 == 0", "HS <= 128", "scale > 0", "q_stride_T % 8 == 0", "BC % 64 == 0", "GROUPS * BLOCKS * (5 * BC + 4 * HS + 300) <= 4096"]  # registers
options = ["--use_fast_math"]

[define]
HS = "C // NH"

[tune]
GROUPS = [1, 2, 3]  # warpgroups of a block: 64 queries each
BC     = [128, 64]
STAGES = [2, 3]
BLOCKS = [3, 2, 1]  # on a multiprocessor at once, for the compiler to fit its registers to

[maps.q_map]
operand = "q"
strides = ["q_stride_B", "q_stride_NH", "q_stride_T"]
box     = [1, 1, "64 * GROUPS", 64]
swizzle = 128

[maps.k_map]
operand = "k"
strides = ["k_stride_B", "k_stride_NH", "k_stride_T"]
box     = [1, 1, "BC", 64]
swizzle = 128

[maps.v_map]
operand = "v"
strides = ["v_stride_B", "v_stride_NH", "v_stride_T"]
box     = [1, 1, "BC", 64]
swizzle = 128

[[launch]]
kernel = "flash"
grid   = ["B * NH", "ceil_div(T, 64 * GROUPS)"]
block  = "128 * GROUPS"
shared = "ceil_div(HS, 64) * 128 * (64 * GROUPS + 2 * STAGES * BC) + 8 * (1 + STAGES)"
[model]
serves = { prompt = "2 if rows >= 2048 else 0" }
---*/
#include "attention_tile.cuh"

constexpr int BR = 64 * GROUPS;  // queries of a block

struct Shared
{
    Real q[PARTS][BR * 64], k[STAGES][PARTS][BC * 64], v[STAGES][PARTS][BC * 64];
    uint64_t q_full, full[STAGES];
};

extern "C" __global__ void __launch_bounds__(WARPGROUP* GROUPS, BLOCKS)
    flash(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
          const __grid_constant__ TensorMap v_map, Real* __restrict__ out, float* __restrict__ lse, int T, int NH, float scale,
          int causal)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int b = blockIdx.x / NH, nh = blockIdx.x % NH, row0 = (gridDim.y - 1 - blockIdx.y) * BR;  // the longest rows first
    const int rows_at = row0 + threadIdx.x / WARPGROUP * 64;                                        // this warpgroup's
    const int blocks = ceil_div(causal ? min(T, row0 + BR) : T, BC);
    const int mine = rows_at < T ? ceil_div(causal ? min(T, rows_at + 64) : T, BC) : 0;
    const float scale2 = scale * LOG2_E;

    // From the last block of keys to the first; only the last ones need a mask.
    auto load = [&](int step) {
        const int stage = step % STAGES, key0 = (blocks - 1 - step) * BC;
        byte_barrier_expect(&shared.full[stage], sizeof(shared.k[0]) + sizeof(shared.v[0]));
        load_rows<BC>(shared.k[stage], &k_map, &shared.full[stage], key0, nh, b);
        load_rows<BC>(shared.v[stage], &v_map, &shared.full[stage], key0, nh, b);
    };
    if (threadIdx.x == 0) {
        byte_barrier_init(&shared.q_full);
        for (int stage = 0; stage < STAGES; stage++) byte_barrier_init(&shared.full[stage]);
        byte_barrier_expect(&shared.q_full, sizeof(shared.q));
        load_rows<BR>(shared.q, &q_map, &shared.q_full, row0, nh, b);
        for (int step = 0; step < min(STAGES, blocks); step++) load(step);
    }
    __syncthreads();

    SoftmaxRows rows;
    float s[BC / 2], o[HS / 2] = {}, shrink[2];
    uint32_t p[BC / 16][4];
    byte_barrier_wait(&shared.q_full, 0);
    for (int step = 0; step < blocks; step++) {
        const int stage = step % STAGES, block = blocks - 1 - step;
        byte_barrier_wait(&shared.full[stage], step / STAGES % 2);
        // perhaps never false: one warpgroup has all the keys that its block has
        if (block < mine) {
            start_scores<BR>(s, shared.q, threadIdx.x / WARPGROUP * 64, shared.k[stage]);
            warpgroup_wait<0>();
            if (block * BC + BC > (causal ? min(T, rows_at + 1) : T)) mask_scores(s, rows_at, block * BC, T, causal);
            rows.add(s, shrink, scale2);
            scale_rows(o, shrink);
            pack_probabilities(p, s);
            start_values(o, p, shared.v[stage]);
            warpgroup_wait<0>();
        }
        __syncthreads();  // every warpgroup has read this stage
        if (threadIdx.x == 0 && step + STAGES < blocks) load(step + STAGES);
    }
    rows.finish();
    store_rows(out, lse, o, rows, rows_at, T, nh, NH, b, scale);
}
