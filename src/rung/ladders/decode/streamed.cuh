// The kernels of a step for few sequences: rows of weights stream through shared memory ahead of each kernel's input.
#pragma once
#include "block_norm.cuh"

namespace decode {

template <class W>
__device__ __forceinline__ void project_qkv_streamed(Matrix<W> qkv, const W* proj, const W* fc, const int* tokens,
                                                     const int* lengths, const Real* wte, const Real* wpe, const Real* ln1_w,
                                                     const Real* ln1_b, const Real* qkv_b, float* x, float* q, Real* k_cache,
                                                     Real* v_cache, int layer, float eps)
{
    extern __shared__ uint4 shared[];
    using Rows = WeightStream<W, C, 1, QKV_ROWS, QKV_SLOTS, QKV_THREADS>;
    float4* xs = Rows::behind(shared);
    Rows rows;
    BlockNorm<W, QKV_THREADS> norm;
    const auto ahead = [&] {
        if (AHEAD == 1 || AHEAD == 2) prefetch_share(proj + size_t(layer) * C * C, size_t(C) * C);
        if (AHEAD == 2) prefetch_share(fc + size_t(layer) * F * C, size_t(F) * C);
    };
    if (!rows.start(qkv.weight + size_t(layer) * 3 * C * C, 3 * C, shared, 2, ahead)) return;
    norm.request(ln1_w + layer * C, ln1_b + layer * C);
    auto ends = Rows::ends(shared);
    ends.fetch(qkv, qkv_b, layer * 3 * C + rows.begin, rows.end - rows.begin);
    // Attention reads cached keys before it waits: it must not start before the previous step is complete.
    wait_for_input(false);
    int length[B];
#pragma unroll
    for (int b = 0; b < B; b++) length[b] = load_fresh(lengths + b);
    norm.run(xs, eps, [&](int b, int f) {
        if (layer > 0) return load_fresh(reinterpret_cast<const float4*>(x + b * C) + f);
        const float4 e = four_floats(wte + size_t(load_fresh(tokens + b)) * C + 4 * f);
        const float4 p = four_floats(wpe + size_t(length[b]) * C + 4 * f);
        const float4 sum = make_float4(e.x + p.x, e.y + p.y, e.z + p.z, e.w + p.w);
        if (blockIdx.x == 0) reinterpret_cast<float4*>(x + b * C)[f] = sum;
        return sum;
    });
    rows.run(xs, [&](int row, int b, float sum) {
        const int channel = row % C, part = row / C;
        sum = ends.apply(row - rows.begin, sum);
        if (part == 0) {
            q[b * C + channel] = sum;
        } else {
            Real* cache = part == 1 ? k_cache : v_cache;
            cache[cached(layer, b, channel / HS, length[b]) + channel % HS] = from_float<Real>(sum);
        }
    });
}

// Adds the warps' partial sums of each of a block's rows to the residual stream, in a fixed order. The residual is prefetched
// during the products.
template <int WARPS_PER_ROW, int THREADS>
struct Residual
{
    float* sums;  // (B, WARPS_PER_ROW, rows)
    int begin, rows;
    float bias, scale, before;

    __device__ __forceinline__ float& at(int b, int part, int row) const { return sums[(b * WARPS_PER_ROW + part) * rows + row]; }

    template <class W>
    __device__ __forceinline__ void fetch_ends(Matrix<W> matrix, const Real* biases, int layer)
    {
        const int place = layer * C + begin + int(threadIdx.x) % max(rows, 1);
        if (threadIdx.x < B * rows) bias = to_float(biases[place]), scale = matrix.row_scale(place);
    }

    __device__ __forceinline__ void fetch_before(const float* x)
    {
        const int i = threadIdx.x;
        if (i < B * rows) before = load_fresh(x + i / rows * C + begin + i % rows);
    }

    template <class W>
    __device__ __forceinline__ void add_to(float* x, Matrix<W> matrix, const Real* biases, int layer)
    {
        for (int i = threadIdx.x; i < B * rows; i += THREADS) {
            const int b = i / rows, r = i % rows, place = layer * C + begin + r;
            if (i >= THREADS) {  // a small GPU: more rows than threads
                bias = to_float(biases[place]), scale = matrix.row_scale(place);
                before = load_fresh(x + b * C + begin + r);
            }
            float sum = at(b, 0, r);
#pragma unroll
            for (int part = 1; part < WARPS_PER_ROW; part++) sum += at(b, part, r);
            x[b * C + begin + r] = before + sum * scale + bias;
        }
    }
};

// B vectors in parts of PIECE float4s each; up to TOGETHER of a thread's loads are in flight before the first is stored.
template <class At, int WARPS_PER_ROW, int PIECE, int THREADS, int TOGETHER, class Load>
__device__ __forceinline__ void spread_parts(float4* to, Load load)
{
    constexpr int COUNT = B * WARPS_PER_ROW * PIECE, EACH = (COUNT + THREADS - 1) / THREADS;
    constexpr int BATCH = EACH < TOGETHER ? EACH : TOGETHER;
    for (int first = threadIdx.x; first < COUNT; first += BATCH * THREADS) {
        float4 v[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int f = min(first + i * THREADS, COUNT - 1);  // unconditional, so that no load waits for a branch
            v[i] = load(f / (WARPS_PER_ROW * PIECE), f % (WARPS_PER_ROW * PIECE));
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int f = first + i * THREADS;
            if (f < COUNT) to[f / PIECE * At::FLOAT4S + At::slot(f % PIECE)] = v[i];
        }
    }
}

template <class W>
__device__ __forceinline__ void project_streamed(Matrix<W> proj, const W* fc2, const int* lengths, const Real* proj_b,
                                                 const float* parts, float* x, int layer)
{
    extern __shared__ uint4 shared[];
    using Rows = WeightStream<W, C, PROJ_SPLIT, PROJ_ROWS, PROJ_SLOTS, PROJ_THREADS>;
    using At = typename Rows::At;
    constexpr int KEYS = KEY_WARPS * Keys<KEY_LOADS>::COUNT, PIECE = C / PROJ_SPLIT / 4;
    float4* ys = Rows::behind(shared);
    Rows rows;
    const auto ahead = [&] {
        if (AHEAD == 1 || AHEAD == 2) prefetch_share(fc2 + size_t(layer) * C * F, size_t(C) * F);
    };
    if (!rows.start(proj.weight + size_t(layer) * C * C, C, shared, 2, ahead)) return;
    Residual<PROJ_SPLIT, PROJ_THREADS> residual = {reinterpret_cast<float*>(ys + B * PROJ_SPLIT * At::FLOAT4S), rows.begin,
                                                   rows.end - rows.begin};
    residual.fetch_ends(proj, proj_b, layer);
    int active[B];
#pragma unroll
    for (int b = 0; b < B; b++) active[b] = load_fresh(lengths + b) / KEYS + 1;
    wait_for_input(true);
    residual.fetch_before(x);
    spread_parts<At, PROJ_SPLIT, PIECE, PROJ_THREADS, 2>(ys, [&](int b, int f) {
        return merged<PARTS>(parts + (size_t(b) * NH + 4 * f / HS) * PARTS * (HS + 4), active[b], 4 * f % HS);
    });
    sync_computing<PROJ_THREADS>();
    rows.run(ys, [&](int row, int b, float sum) { residual.at(b, warp_id() % PROJ_SPLIT, row - rows.begin) = sum; });
    sync_computing<PROJ_THREADS>();
    residual.add_to(x, proj, proj_b, layer);
}

template <class W>
__device__ __forceinline__ void expand_streamed(Matrix<W> fc, const W* qkv, const W* fc2, const Real* ln2_w, const Real* ln2_b,
                                                const Real* fc_b, const float* x, float* h, int layer, float eps)
{
    extern __shared__ uint4 shared[];
    using Rows = WeightStream<W, C, 1, FC_ROWS, FC_SLOTS, FC_THREADS>;
    float4* xs = Rows::behind(shared);
    Rows rows;
    BlockNorm<W, FC_THREADS> norm;
    const auto ahead = [&] {
        if (AHEAD == 3) prefetch_share(fc2 + size_t(layer) * C * F, size_t(C) * F);
        if (AHEAD != 0 && AHEAD != 3 && layer + 1 < L) prefetch_share(qkv + size_t(layer + 1) * 3 * C * C, size_t(3) * C * C);
    };
    if (!rows.start(fc.weight + size_t(layer) * F * C, F, shared, 2, ahead)) return;
    norm.request(ln2_w + layer * C, ln2_b + layer * C);
    auto ends = Rows::ends(shared);
    ends.fetch(fc, fc_b, layer * F + rows.begin, rows.end - rows.begin);
    wait_for_input(true);
    norm.run(xs, eps, [&](int b, int f) { return load_fresh(reinterpret_cast<const float4*>(x + b * C) + f); });
    rows.run(xs, [&](int row, int b, float sum) { h[b * F + row] = activate<ACT>(ends.apply(row - rows.begin, sum)); });
}

template <class W>
__device__ __forceinline__ void contract_streamed(Matrix<W> fc2, const W* head, const Real* fc2_b, const float* h, float* x,
                                                  int layer)
{
    extern __shared__ uint4 shared[];
    using Rows = WeightStream<W, F, FC2_SPLIT, FC2_ROWS, FC2_SLOTS, FC2_THREADS>;
    using At = typename Rows::At;
    constexpr int PIECE = F / FC2_SPLIT / 4;
    float4* hs = Rows::behind(shared);
    Rows rows;
    const auto ahead = [&] {
        if (AHEAD > 0 && layer + 1 == L) prefetch_share(head, min(size_t(V) * C, size_t(HEAD_AHEAD) << 20));
    };
    if (!rows.start(fc2.weight + size_t(layer) * C * F, C, shared, 2, ahead)) return;
    Residual<FC2_SPLIT, FC2_THREADS> residual = {reinterpret_cast<float*>(hs + B * FC2_SPLIT * At::FLOAT4S), rows.begin,
                                                 rows.end - rows.begin};
    residual.fetch_ends(fc2, fc2_b, layer);
    wait_for_input(true);
    residual.fetch_before(x);
    spread_parts<At, FC2_SPLIT, PIECE, FC2_THREADS, 8>(
        hs, [&](int b, int f) { return load_fresh(reinterpret_cast<const float4*>(h + b * F) + f); });
    sync_computing<FC2_THREADS>();
    rows.run(hs, [&](int row, int b, float sum) { residual.at(b, warp_id() % FC2_SPLIT, row - rows.begin) = sum; });
    sync_computing<FC2_THREADS>();
    residual.add_to(x, fc2, fc2_b, layer);
}

// Each lane keeps the best of the rows that it finishes; each block reports one for every sequence.
template <class W>
__device__ __forceinline__ void head_streamed(Matrix<W> head, const Real* lnf_w, const Real* lnf_b, const float* x, float* logits,
                                              float* best_value, int* best_index, float eps)
{
    extern __shared__ uint4 shared[];
    constexpr int WARPS = HEAD_THREADS / 32;
    using Rows = WeightStream<W, C, 1, HEAD_ROWS, HEAD_SLOTS, HEAD_THREADS>;
    float4* xs = Rows::behind(shared);
    Rows rows;
    BlockNorm<W, HEAD_THREADS> norm;
    if (!rows.start(head.weight, V, shared, 3, [] {})) return;
    norm.request(lnf_w, lnf_b);
    auto ends = Rows::ends(shared);
    ends.fetch(head, nullptr, rows.begin, rows.end - rows.begin);
    wait_for_input(true);
    norm.run(xs, eps, [&](int b, int f) { return load_fresh(reinterpret_cast<const float4*>(x + b * C) + f); });
    Best best[B];
#pragma unroll
    for (int b = 0; b < B; b++) best[b] = {-INFINITY, INT_MAX};
    rows.run(xs, [&](int row, int b, float sum) {
        const float logit = ends.apply(row - rows.begin, sum);
        logits[size_t(b) * V + row] = logit;
        best[b] = better(best[b], {logit, row});
    });
    report_best<WARPS>(best, best_value, best_index, [] { sync_computing<HEAD_THREADS>(); });
}

}  // namespace decode
