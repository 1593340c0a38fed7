// Attention by wgmma: one warpgroup's work on 64 queries and BC keys, with S, P and O in registers. Tiles of q, k and v are in
// shared memory as tensor maps load them: rows of 64 elements, swizzled; longer heads have one such part per 64 elements. HS and
// BC are the rung's.
#pragma once
#include "tensor_map.cuh"
#include "warpgroup.cuh"

constexpr int PARTS = ceil_div(HS, 64);  // of a head
constexpr float LOG2_E = 1.4426950408889634f;

// One tile of ROWS queries, keys or values of one head, starting at `row0`.
template <int ROWS>
__device__ __forceinline__ void load_rows(Factor (&tile)[PARTS][ROWS * 64], const TensorMap* map, uint64_t* barrier, int row0,
                                          int nh, int b)
{
    for (int part = 0; part < PARTS; part++) tensor_load(tile[part], map, barrier, 64 * part, row0, nh, b);
}

// s (+)= q k^T for the 64 queries from `row` on.
template <int BR>
__device__ __forceinline__ void multiply_scores(float (&s)[BC / 2], const Factor (&q)[PARTS][BR * 64], int row,
                                                const Factor (&k)[PARTS][BC * 64], bool add)
{
#pragma unroll
    for (int kk = 0; kk < HS / 16; kk++) {
        const SharedTile query = tile_along_depth(&q[kk / 4][row * 64]), key = tile_along_depth(k[kk / 4]);
        warpgroup_multiply<BC>(s, query + kk % 4 * PRODUCT_STEP, key + kk % 4 * PRODUCT_STEP, add || kk > 0);
    }
}

// o (+)= p v. Two neighbouring 8-column tiles of S have the layout of one operand, so that P stays in its registers.
__device__ __forceinline__ void multiply_values(float (&o)[HS / 2], const uint32_t (&p)[BC / 16][4],
                                                const Factor (&v)[PARTS][BC * 64], bool add)
{
#pragma unroll
    for (int kk = 0; kk < BC / 16; kk++) {
        warpgroup_multiply<HS, true>(o, p[kk], tile_across_depth(&v[0][kk * 16 * 64], BC * SWIZZLE_ROW), add || kk > 0);
    }
}

template <int BR>
__device__ __forceinline__ void start_scores(float (&s)[BC / 2], const Factor (&q)[PARTS][BR * 64], int row,
                                             const Factor (&k)[PARTS][BC * 64])
{
    warpgroup_begin();
    multiply_scores<BR>(s, q, row, k, false);
    warpgroup_commit();
}

__device__ __forceinline__ void start_values(float (&o)[HS / 2], const uint32_t (&p)[BC / 16][4],
                                             const Factor (&v)[PARTS][BC * 64])
{
    warpgroup_begin();
    multiply_values(o, p, v, true);
    warpgroup_commit();
}

// Masks keys beyond the last and, if causal, after the query: s is for the queries from row0 on and the keys from key0 on.
__device__ __forceinline__ void mask_scores(float (&s)[BC / 2], int row0, int key0, int T, int causal)
{
    const int first = key0 + warpgroup_column();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int seen = (causal ? min(T, row0 + warpgroup_row(h) + 1) : T) - first;
#pragma unroll
        for (int i = 2 * h; i < BC / 2; i += 4) {
            if (i / 4 * 8 >= seen) s[i] = -INFINITY;
            if (i / 4 * 8 + 1 >= seen) s[i + 1] = -INFINITY;
        }
    }
}

// A thread's two rows: their maximum m, and l, the sum over this thread's columns alone.
struct SoftmaxRows
{
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {};

    // s becomes exp(scale (s - m)), and m and l are updated; earlier sums have to be multiplied by `shrink`. scale2 is scale /
    // log(2), since the hardware computes powers of two.
    __device__ __forceinline__ void add(float (&s)[BC / 2], float (&shrink)[2], float scale2)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float largest = m[h];
#pragma unroll
            for (int i = 2 * h; i < BC / 2; i += 4) largest = fmaxf(largest, fmaxf(s[i], s[i + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
            shrink[h] = exp2f((m[h] - largest) * scale2);
            m[h] = largest;
            l[h] *= shrink[h];
#pragma unroll
            for (int i = 2 * h; i < BC / 2; i += 4) {
                s[i] = exp2f(fmaf(s[i], scale2, -largest * scale2));
                s[i + 1] = exp2f(fmaf(s[i + 1], scale2, -largest * scale2));
                l[h] += s[i] + s[i + 1];
            }
        }
    }

    // Reduces over the four threads of each row.
    __device__ __forceinline__ void finish()
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            l[h] += __shfl_xor_sync(ALL_LANES, l[h], 1);
            l[h] += __shfl_xor_sync(ALL_LANES, l[h], 2);
        }
    }
};

__device__ __forceinline__ void scale_rows(float (&o)[HS / 2], const float (&factor)[2])
{
#pragma unroll
    for (int i = 0; i < HS / 2; i++) o[i] *= factor[i / 2 % 2];
}

__device__ __forceinline__ void pack_probabilities(uint32_t (&p)[BC / 16][4], const float (&s)[BC / 2])
{
#pragma unroll
    for (int i = 0; i < BC / 4; i++) p[i / 4][i % 4] = pack2<Factor>(s[2 * i], s[2 * i + 1]);
}

// Stores o / l for the 64 queries from row0 on, and their logsumexp on request.
template <class Number>
__device__ __forceinline__ void store_rows(Number* out, float* lse, const float (&o)[HS / 2], const SoftmaxRows& rows, int row0,
                                           int T, int nh, int NH, int b, float scale)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int t = row0 + warpgroup_row(h);
        if (t >= T) continue;
        const float share = 1.0f / rows.l[h];
        Number* to = out + (((int64_t)b * T + t) * NH + nh) * HS + warpgroup_column();
#pragma unroll
        for (int i = 2 * h; i < HS / 2; i += 4) {
            *reinterpret_cast<uint32_t*>(to + i / 4 * 8) = pack2<Number>(o[i] * share, o[i + 1] * share);
        }
        if (lse != nullptr && warpgroup_column() == 0) lse[((int64_t)b * NH + nh) * T + t] = scale * rows.m[h] + logf(rows.l[h]);
    }
}
