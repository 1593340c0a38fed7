/*---
idea   = "For few queries: the warpgroups of a block share 64 queries and divide the keys, every GROUPS-th block of them for each, with separate stages and barriers; at the end they merge their results through shared memory."
expect = "One text of 1024 tokens has 64 or 96 tiles of 128 or 192 queries for 132 multiprocessors, and the longest takes eight steps one after another. With tiles of 64 queries there are 192, and with three warpgroups the longest takes three steps: a third of rung 32's time at b1t1024, and slower with many tiles, since each tile reads all its keys separately."
found  = "The fastest for few queries, as expected, but by less: 11.7 us at b1t1024 in bf16 on an H200 (two warpgroups, 128 keys), 1.03x over rung 32, 1.53x over rung 29, 1.30x cuDNN's speed; at T 512 6.70 us, 1.10x over rung 32, 1.52x cuDNN's speed. At b8t1024 48.1 us against rung 30's 43.5."
from   = "attention/30"
inherit = ["arch_specific", "needs", "options", "define", "tune", "maps", "launch"]
dtypes = ["bf16", "f16"]

[tune]
GROUPS = [2, 3, 4]  # warpgroups of a block
BLOCKS = [1, 2]

[maps.q_map]
operand = "q"
strides = ["q_stride_B", "q_stride_NH", "q_stride_T"]
box     = [1, 1, 64, 64]
swizzle = 128

[[launch]]
kernel = "flash"
grid   = ["B * NH", "ceil_div(T, 64)"]
shared = "ceil_div(HS, 64) * 128 * (64 + GROUPS * 2 * STAGES * BC) + 512 * GROUPS + 8 * (1 + GROUPS * STAGES)"
[model]
serves = { prompt = "2 if rows < 2048 else 0" }
---*/
#include "attention_tile.cuh"

constexpr int O_STRIDE = HS + 4;  // rows read at once begin in different banks

struct Stage
{
    Real k[PARTS][BC * 64], v[PARTS][BC * 64];
};
struct Shared
{
    Real q[PARTS][64 * 64];
    union  // first the stages of all warpgroups, then each one's partial result
    {
        Stage stages[GROUPS][STAGES];
        float o[GROUPS][64 * O_STRIDE];
    };
    float m[GROUPS][64], l[GROUPS][64];
    uint64_t q_full, full[GROUPS][STAGES];
};
static_assert(sizeof(float[GROUPS][64 * O_STRIDE]) <= sizeof(Stage[GROUPS][STAGES]), "O fits where stages were");

extern "C" __global__ void __launch_bounds__(WARPGROUP* GROUPS, BLOCKS)
    flash(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
          const __grid_constant__ TensorMap v_map, Real* __restrict__ out, float* __restrict__ lse, int T, int NH, float scale,
          int causal)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int b = blockIdx.x / NH, nh = blockIdx.x % NH, row0 = (gridDim.y - 1 - blockIdx.y) * 64;  // the longest rows first
    const int group = threadIdx.x / WARPGROUP, leader = threadIdx.x % WARPGROUP == 0;
    const int blocks = ceil_div(causal ? min(T, row0 + 64) : T, BC);
    const int steps = (blocks - group + GROUPS - 1) / GROUPS;  // this warpgroup's
    const float scale2 = scale * LOG2_E;

    // From the last block of keys, which has the mask and belongs to group 0, to the first.
    auto key_of = [&](int step) { return (blocks - 1 - group - step * GROUPS) * BC; };
    auto load = [&](int step) {
        uint64_t* full = &shared.full[group][step % STAGES];
        Stage& stage = shared.stages[group][step % STAGES];
        byte_barrier_expect(full, sizeof(Stage));
        load_rows<BC>(stage.k, &k_map, full, key_of(step), nh, b);
        load_rows<BC>(stage.v, &v_map, full, key_of(step), nh, b);
    };
    if (threadIdx.x == 0) {
        byte_barrier_init(&shared.q_full);
        byte_barrier_expect(&shared.q_full, sizeof(shared.q));
        load_rows<64>(shared.q, &q_map, &shared.q_full, row0, nh, b);
    }
    if (leader) {
        for (int stage = 0; stage < STAGES; stage++) byte_barrier_init(&shared.full[group][stage]);
        for (int step = 0; step < min(STAGES, steps); step++) load(step);
    }
    __syncthreads();

    SoftmaxRows rows;
    float s[BC / 2], o[HS / 2] = {}, shrink[2];
    uint32_t p[BC / 16][4];
    byte_barrier_wait(&shared.q_full, 0);
    for (int step = 0; step < steps; step++) {
        Stage& stage = shared.stages[group][step % STAGES];
        byte_barrier_wait(&shared.full[group][step % STAGES], step / STAGES % 2);
        start_scores<64>(s, shared.q, 0, stage.k);
        warpgroup_wait<0>();
        if (group == 0 && step == 0) mask_scores(s, row0, key_of(0), T, causal);
        rows.add(s, shrink, scale2);
        scale_rows(o, shrink);
        pack_probabilities(p, s);
        start_values(o, p, stage.v);
        warpgroup_wait<0>();
        sync_some<WARPGROUP>(group + 1);  // its four warps have read this stage
        // perhaps never true: a warpgroup has more blocks of keys than stages only in long texts
        if (leader && step + STAGES < steps) load(step + STAGES);
    }
    rows.finish();

    __syncthreads();  // nobody reads stages any more
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = warpgroup_row(h);
        if (warpgroup_column() == 0) shared.m[group][row] = rows.m[h] * scale2, shared.l[group][row] = rows.l[h];
#pragma unroll
        for (int i = 2 * h; i < HS / 2; i += 4) {
            *reinterpret_cast<float2*>(&shared.o[group][row * O_STRIDE + i / 4 * 8 + warpgroup_column()]) =
                make_float2(o[i], o[i + 1]);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * HS / VEC; i += WARPGROUP * GROUPS) {  // a thread merges VEC neighbouring elements of a row
        const int row = i / (HS / VEC), hs = i % (HS / VEC) * VEC, t = row0 + row;
        if (t >= T) break;
        float m = -INFINITY, l = 0.0f, sum[VEC] = {};
#pragma unroll
        for (int g = 0; g < GROUPS; g++) m = fmaxf(m, shared.m[g][row]);
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const float weight = exp2f(shared.m[g][row] - m);
            l += weight * shared.l[g][row];
#pragma unroll
            for (int x = 0; x < VEC; x++) sum[x] += weight * shared.o[g][row * O_STRIDE + hs + x];
        }
        Vec16<Real> result;
#pragma unroll
        for (int x = 0; x < VEC; x++) result[x] = from_float<Real>(sum[x] / l);
        store_vec(&out[(((int64_t)b * T + t) * NH + nh) * HS + hs], result);
        if (lse != nullptr && hs == 0) lse[((int64_t)b * NH + nh) * T + t] = m / LOG2_E + logf(l);
    }
}
