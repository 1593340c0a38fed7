// The kernels of a step for few sequences: every weight is read once, by the one warp that needs it, directly into registers. The
// rungs that include this differ in when a kernel may start (DEPENDENT) and in the type of a weight (W).
#pragma once
#include "few_sequences.cuh"

namespace decode {

// The code before this call must not depend on the previous kernel's output. EARLY lets the next kernel start even before this
// one's input is ready: it too prefetches its weights and waits. Only attention reads more before it waits (cached keys), so the
// projection before it delays its start until the previous step is complete.
__device__ __forceinline__ void wait_for_input(bool early = EARLY)
{
    if (!DEPENDENT) return;
    if (early) pdl_launch_dependents();
    pdl_wait();
    if (!early) pdl_launch_dependents();
}

template <class W>
__device__ __forceinline__ void project_qkv_row(Matrix<W> qkv, const int* tokens, const int* lengths, const Real* wte,
                                                const Real* wpe, const Real* ln1_w, const Real* ln1_b, const Real* qkv_b,
                                                float* x, float* q, Real* k_cache, Real* v_cache, int layer, float eps)
{
    using At = Spread<W, C>;
    extern __shared__ float4 shared[];
    float4 *gain = shared, *shift = gain + At::FLOAT4S, *xs = shift + At::FLOAT4S;
    const int lane = lane_id(), row = (blockIdx.x * (QKV_THREADS / 32) + warp_id()) * QKV_ROWS;

    Row<W, C> weight[QKV_ROWS];
#pragma unroll
    for (int r = 0; r < QKV_ROWS; r++)
        weight[r].request(qkv.weight + (size_t(layer) * 3 * C + row + r) * C, lane, row + r < 3 * C);
    const bool mine = lane < QKV_ROWS && row + lane < 3 * C;
    const float bias = mine ? to_float(qkv_b[layer * 3 * C + row + lane]) : 0.0f;
    const float scale = mine ? qkv.row_scale(layer * 3 * C + row + lane) : 0.0f;
    spread<W, C>(gain, ln1_w + layer * C);
    spread<W, C>(shift, ln1_b + layer * C);
    wait_for_input(false);

    for (int b = 0; b < B; b++)
        for (int f = threadIdx.x; f < C / 4; f += QKV_THREADS) {
            float4 v;
            if (layer == 0) {
                const float4 e = four_floats(wte + size_t(load_fresh(tokens + b)) * C + 4 * f);
                const float4 p = four_floats(wpe + size_t(load_fresh(lengths + b)) * C + 4 * f);
                v = make_float4(e.x + p.x, e.y + p.y, e.z + p.z, e.w + p.w);
                if (blockIdx.x == 0) reinterpret_cast<float4*>(x + b * C)[f] = v;
            } else {
                v = load_fresh(reinterpret_cast<const float4*>(x + b * C) + f);
            }
            xs[b * At::FLOAT4S + At::slot(f)] = v;
        }
    __syncthreads();
    for (int b = 0; b < B; b++) {
        float dots[QKV_ROWS];
        const float4* own = xs + b * At::FLOAT4S;
        dot_norm(dots, weight, own, gain, shift, norm_of<W, C>(own, lane, eps), lane);
        const float sum = chosen(dots, lane) * scale + bias;
        if (!mine) continue;
        const int channel = (row + lane) % C, part = (row + lane) / C;
        if (part == 0) {
            q[b * C + channel] = sum;
        } else {
            Real* cache = part == 1 ? k_cache : v_cache;
            cache[cached(layer, b, channel / HS, load_fresh(lengths + b)) + channel % HS] = from_float<Real>(sum);
        }
    }
}

// Every block merges the heads' parts itself, then C * PROJ_SPLIT warps share the rows.
template <class W>
__device__ __forceinline__ void project_row(Matrix<W> proj, const int* lengths, const Real* proj_b, const float* parts, float* x,
                                            int layer)
{
    constexpr int K = C / PROJ_SPLIT, KEYS = KEY_WARPS * Keys<KEY_LOADS>::COUNT;
    using At = Spread<W, K>;
    extern __shared__ float4 shared[];
    float4* ys = shared;
    const int lane = lane_id(), warp = warp_id(), row = (blockIdx.x * (PROJ_THREADS / 32) + warp) / PROJ_SPLIT;

    Row<W, K> weight[1];
    weight[0].request(proj.weight + (size_t(layer) * C + row) * C + warp % PROJ_SPLIT * K, lane, row < C);
    const bool mine = lane == 0 && warp % PROJ_SPLIT == 0 && row < C;
    const float bias = mine ? to_float(proj_b[layer * C + row]) : 0.0f;
    const float scale = mine ? proj.row_scale(layer * C + row) : 0.0f;
    wait_for_input();

    float before[B], sum[B];
    for (int b = 0; b < B; b++) {
        before[b] = mine ? load_fresh(x + b * C + row) : 0.0f;
        const int active = load_fresh(lengths + b) / KEYS + 1;
        for (int f = threadIdx.x; f < C / 4; f += PROJ_THREADS) {
            const int head = 4 * f / HS, d = 4 * f % HS;
            ys[(b * PROJ_SPLIT + f / (K / 4)) * At::FLOAT4S + At::slot(f % (K / 4))] =
                merged<PARTS>(parts + (size_t(b) * NH + head) * PARTS * (HS + 4), active, d);
        }
    }
    __syncthreads();
    split_dot<PROJ_SPLIT, PROJ_THREADS / 32>(sum, weight, ys);
    if (mine)
        for (int b = 0; b < B; b++) x[b * C + row] = before[b] + sum[b] * scale + bias;
}

template <class W>
__device__ __forceinline__ void expand_row(Matrix<W> fc, const Real* ln2_w, const Real* ln2_b, const Real* fc_b, const float* x,
                                           float* h, int layer, float eps)
{
    using At = Spread<W, C>;
    extern __shared__ float4 shared[];
    float4 *gain = shared, *shift = gain + At::FLOAT4S, *xs = shift + At::FLOAT4S;
    const int lane = lane_id(), row = (blockIdx.x * (FC_THREADS / 32) + warp_id()) * FC_ROWS;

    Row<W, C> weight[FC_ROWS];
#pragma unroll
    for (int r = 0; r < FC_ROWS; r++) weight[r].request(fc.weight + (size_t(layer) * F + row + r) * C, lane, row + r < F);
    const bool mine = lane < FC_ROWS && row + lane < F;
    const float bias = mine ? to_float(fc_b[layer * F + row + lane]) : 0.0f;
    const float scale = mine ? fc.row_scale(layer * F + row + lane) : 0.0f;
    spread<W, C>(gain, ln2_w + layer * C);
    spread<W, C>(shift, ln2_b + layer * C);
    wait_for_input();

    for (int b = 0; b < B; b++)
        for (int f = threadIdx.x; f < C / 4; f += FC_THREADS)
            xs[b * At::FLOAT4S + At::slot(f)] = load_fresh(reinterpret_cast<const float4*>(x + b * C) + f);
    __syncthreads();
    for (int b = 0; b < B; b++) {
        float dots[FC_ROWS];
        const float4* own = xs + b * At::FLOAT4S;
        dot_norm(dots, weight, own, gain, shift, norm_of<W, C>(own, lane, eps), lane);
        if (mine) h[b * F + row + lane] = activate<ACT>(chosen(dots, lane) * scale + bias);
    }
}

template <class W>
__device__ __forceinline__ void contract_row(Matrix<W> fc2, const Real* fc2_b, const float* h, float* x, int layer)
{
    constexpr int K = F / FC2_SPLIT;
    using At = Spread<W, K>;
    extern __shared__ float4 shared[];
    float4* hs = shared;
    const int lane = lane_id(), warp = warp_id(), row = (blockIdx.x * (FC2_THREADS / 32) + warp) / FC2_SPLIT;

    Row<W, K> weight[1];
    weight[0].request(fc2.weight + (size_t(layer) * C + row) * F + warp % FC2_SPLIT * K, lane, row < C);
    const bool mine = lane == 0 && warp % FC2_SPLIT == 0 && row < C;
    const float bias = mine ? to_float(fc2_b[layer * C + row]) : 0.0f;
    const float scale = mine ? fc2.row_scale(layer * C + row) : 0.0f;
    wait_for_input();

    float before[B], sum[B];
    for (int b = 0; b < B; b++) {
        before[b] = mine ? load_fresh(x + b * C + row) : 0.0f;
        for (int f = threadIdx.x; f < F / 4; f += FC2_THREADS)
            hs[(b * FC2_SPLIT + f / (K / 4)) * At::FLOAT4S + At::slot(f % (K / 4))] =
                load_fresh(reinterpret_cast<const float4*>(h + b * F) + f);
    }
    __syncthreads();
    split_dot<FC2_SPLIT, FC2_THREADS / 32>(sum, weight, hs);
    if (mine)
        for (int b = 0; b < B; b++) x[b * C + row] = before[b] + sum[b] * scale + bias;
}

// Warps stride over the vocabulary; each keeps the best it has seen, each block reports one for every sequence.
template <class W>
__device__ __forceinline__ void head_row(Matrix<W> head, const Real* lnf_w, const Real* lnf_b, const float* x, float* logits,
                                         float* best_value, int* best_index, float eps)
{
    constexpr int WARPS = HEAD_THREADS / 32;
    using At = Spread<W, C>;
    extern __shared__ float4 shared[];
    float4 *gain = shared, *shift = gain + At::FLOAT4S, *xs = shift + At::FLOAT4S;
    const int lane = lane_id(), warp = warp_id();
    int row = (blockIdx.x * WARPS + warp) * HEAD_ROWS;

    Row<W, C> weight[HEAD_ROWS];
#pragma unroll
    for (int r = 0; r < HEAD_ROWS; r++) weight[r].request(head.weight + size_t(row + r) * C, lane, row + r < V);
    spread<W, C>(gain, lnf_w);
    spread<W, C>(shift, lnf_b);
    wait_for_input();

    for (int b = 0; b < B; b++)
        for (int f = threadIdx.x; f < C / 4; f += HEAD_THREADS)
            xs[b * At::FLOAT4S + At::slot(f)] = load_fresh(reinterpret_cast<const float4*>(x + b * C) + f);
    __syncthreads();
    for (int b = warp; b < B; b += WARPS) {  // each vector once, in place
        float4* own = xs + b * At::FLOAT4S;
        const Norm norm = norm_of<W, C>(own, lane, eps);
        for (int f = lane; f < At::FLOAT4S; f += WARP_SIZE) own[f] = normalised(own[f], norm, gain[f], shift[f]);
    }
    __syncthreads();
    Best best[B];
#pragma unroll
    for (int b = 0; b < B; b++) best[b] = {-INFINITY, INT_MAX};
    while (row < V) {
        const bool mine = lane < HEAD_ROWS && row + lane < V;
        const float scale = mine ? head.row_scale(row + lane) : 0.0f;
#pragma unroll
        for (int b = 0; b < B; b++) {
            float dots[HEAD_ROWS];
            dot(dots, weight, xs + b * At::FLOAT4S, lane);
            const float logit = chosen(dots, lane) * scale;
            if (!mine) continue;
            best[b] = better(best[b], {logit, row + lane});
            logits[size_t(b) * V + row + lane] = logit;
        }
        row += gridDim.x * WARPS * HEAD_ROWS;
#pragma unroll
        for (int r = 0; r < HEAD_ROWS; r++) weight[r].request(head.weight + size_t(row + r) * C, lane, row + r < V);
    }
    report_best<WARPS>(best, best_value, best_index, [] { __syncthreads(); });
}

}  // namespace decode
