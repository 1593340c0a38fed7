/*---
idea   = "Programmatic dependent launch: a kernel starts while the one before still runs, asks for its weights, which nobody writes, and only then waits for its input."
expect = "Between two kernels the memory no longer stands still: weights of the next stream in while the last sums are being added up."
found  = ""
provenance = "ours; the trial of a persistent kernel showed that the chain of short phases costs more than the bytes"
dtypes = ["f32", "f16", "bf16"]
needs  = [
  "C * sizeof_real % 16 == 0 and F // FC2_SPLIT * sizeof_real % 16 == 0 and C // PROJ_SPLIT * sizeof_real % 16 == 0",
  "F % FC2_SPLIT == 0 and C % PROJ_SPLIT == 0 and C % 4 == 0 and F % 4 == 0",
  "HS * sizeof_real % 16 == 0 and 32 % (HS * sizeof_real // 16) == 0",
  "B <= 8 and (B + 2) * round_up(C, 512 // sizeof_real) * 4 <= 48000",
  "B * FC2_SPLIT * round_up(F // FC2_SPLIT, 512 // sizeof_real) * 4 <= 200000",
]
[tune]
QKV_THREADS = [256, 128, 512]
QKV_ROWS = [2, 1, 3, 4]
KEY_WARPS = [4, 8, 2]
KEY_LOADS = [8, 4]
PROJ_THREADS = [256, 128, 512]
PROJ_SPLIT = [2, 1, 4]
FC_THREADS = [256, 128, 512]
FC_ROWS = [2, 3, 4, 1]
FC2_THREADS = [384, 256, 512]
FC2_SPLIT = [2, 1, 4, 8]
HEAD_THREADS = [256, 512]
HEAD_ROWS = [4, 2, 6]
HEAD_BLOCKS = [2, 1, 3]
EARLY = [1, 0]
[define]
DIM_B = "B"
DIM_L = "L"
DIM_C = "C"
DIM_NH = "NH"
DIM_F = "F"
DIM_V = "V"
DIM_MAXT = "MAXT"
ACT = "act"
BY_LAYER = "by_layer"
PARTS = "ceil_div(MAXT, KEY_WARPS * KEY_LOADS * (32 // (HS * sizeof_real // 16)))"
[bind]
groups = "min(HEAD_BLOCKS * sms, ceil_div(V, HEAD_THREADS // 32 * HEAD_ROWS))"
[buffers.x]
shape = ["B", "C"]
dtype = "f32"
[buffers.q]
shape = ["B", "C"]
dtype = "f32"
[buffers.parts]
shape = ["B", "NH", "ceil_div(MAXT, KEY_WARPS * KEY_LOADS * (32 // (HS * sizeof_real // 16)))", "HS + 4"]
dtype = "f32"
[buffers.h]
shape = ["B", "F"]
dtype = "f32"
[buffers.best_value]
shape = ["B", "HEAD_BLOCKS * sms"]
dtype = "f32"
[buffers.best_index]
shape = ["B", "HEAD_BLOCKS * sms"]
dtype = "i32"
[[launch]]
kernel = "project_qkv"
grid   = "ceil_div(3 * C, QKV_THREADS // 32 * QKV_ROWS)"
block  = "QKV_THREADS"
pdl    = true
each   = { layer = "L" }
[[launch]]
kernel = "attend"
grid   = ["ceil_div(MAXT, KEY_WARPS * KEY_LOADS * (32 // (HS * sizeof_real // 16)))", "NH", "B"]
block  = "KEY_WARPS * 32"
pdl    = true
each   = { layer = "L" }
[[launch]]
kernel = "project"
grid   = "ceil_div(C * PROJ_SPLIT, PROJ_THREADS // 32)"
block  = "PROJ_THREADS"
pdl    = true
each   = { layer = "L" }
[[launch]]
kernel = "expand"
grid   = "ceil_div(F, FC_THREADS // 32 * FC_ROWS)"
block  = "FC_THREADS"
pdl    = true
each   = { layer = "L" }
[[launch]]
kernel = "contract"
grid   = "ceil_div(C * FC2_SPLIT, FC2_THREADS // 32)"
block  = "FC2_THREADS"
shared = "B * FC2_SPLIT * round_up(F // FC2_SPLIT, 512 // sizeof_real) * 4"
pdl    = true
each   = { layer = "L" }
[[launch]]
kernel = "head"
grid   = "min(HEAD_BLOCKS * sms, ceil_div(V, HEAD_THREADS // 32 * HEAD_ROWS))"
block  = "HEAD_THREADS"
pdl    = true
[[launch]]
kernel = "pick"
grid   = "B"
block  = 128
pdl    = true
---*/
#include "decode.cuh"

using namespace decode;

// The kernel after the next reads, before it waits, only what was complete when this kernel's input was: weights. Only
// attention reads more, cached keys, and so the QKV projection before it lets it start no earlier than it must.
__device__ __forceinline__ void wait_for_input(bool early = EARLY)
{
    if (early) pdl_launch_dependents();
    pdl_wait();
    if (!early) pdl_launch_dependents();
}

extern "C" __global__ void __launch_bounds__(QKV_THREADS)
    project_qkv(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, const Real* ln1_w,
                const Real* ln1_b, const Real* qkv_w, const Real* qkv_b, float* x, float* q, Real* k_cache,
                Real* v_cache, int layer, float eps)
{
    using At = Spread<Real, C>;
    __shared__ float4 xs[B][At::FLOAT4S], gain[At::FLOAT4S], shift[At::FLOAT4S];
    const int lane = lane_id(), row = (blockIdx.x * (QKV_THREADS / 32) + warp_id()) * QKV_ROWS;

    Row<Real, C> weight[QKV_ROWS];
#pragma unroll
    for (int r = 0; r < QKV_ROWS; r++)
        weight[r].request(qkv_w + (size_t(layer) * 3 * C + row + r) * C, lane, row + r < 3 * C);
    const bool mine = lane < QKV_ROWS && row + lane < 3 * C;
    const float bias = mine ? to_float(qkv_b[layer * 3 * C + row + lane]) : 0.0f;
    spread<Real, C>(gain, ln1_w + layer * C);
    spread<Real, C>(shift, ln1_b + layer * C);
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
            xs[b][At::slot(f)] = v;
        }
    __syncthreads();
    for (int b = 0; b < B; b++) {
        float dots[QKV_ROWS];
        dot_norm(dots, weight, xs[b], gain, shift, norm_of<Real, C>(xs[b], lane, eps), lane);
        const float sum = chosen(dots, lane) + bias;
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

extern "C" __global__ void __launch_bounds__(KEY_WARPS * 32)
    attend(const int* lengths, const float* q, const Real* k_cache, const Real* v_cache, float* parts, int layer,
           float scale)
{
    using Share = Keys<KEY_LOADS>;
    const int part = blockIdx.x, head = blockIdx.y, b = blockIdx.z, lane = lane_id(), warp = warp_id();
    const int length = load_fresh(lengths + b), first = (part * KEY_WARPS + warp) * Share::COUNT;
    if (part * KEY_WARPS * Share::COUNT > length) return;

    const Real* keys = k_cache + cached(layer, b, head, 0);
    const Real* values = v_cache + cached(layer, b, head, 0);
    Share share;
    share.request(keys, values, first, 0, length, lane);
    wait_for_input();
    share.request(keys, values, first, length, length + 1, lane);
    float query[VEC], y[VEC], m, l;
#pragma unroll
    for (int j = 0; j < VEC; j += 4) {
        const float4 f = load_fresh(reinterpret_cast<const float4*>(q + b * C + head * HS + lane % Share::LANES * VEC + j));
        query[j] = f.x, query[j + 1] = f.y, query[j + 2] = f.z, query[j + 3] = f.w;
    }
    share.attend(query, BY_LAYER ? scale / (layer + 1) : scale, first, length + 1, lane, m, l, y);
    store_part<KEY_WARPS>(parts + ((size_t(b) * NH + head) * PARTS + part) * (HS + 4), m, l, y, lane, warp);
}

extern "C" __global__ void __launch_bounds__(PROJ_THREADS)
    project(const int* lengths, const Real* proj_w, const Real* proj_b, const float* parts, float* x, int layer)
{
    constexpr int K = C / PROJ_SPLIT, KEYS = KEY_WARPS * Keys<KEY_LOADS>::COUNT;
    using At = Spread<Real, K>;
    __shared__ float4 ys[B][PROJ_SPLIT][At::FLOAT4S];
    const int lane = lane_id(), warp = warp_id(), row = (blockIdx.x * (PROJ_THREADS / 32) + warp) / PROJ_SPLIT;

    Row<Real, K> weight[1];
    weight[0].request(proj_w + (size_t(layer) * C + row) * C + warp % PROJ_SPLIT * K, lane, row < C);
    const bool mine = lane == 0 && warp % PROJ_SPLIT == 0 && row < C;
    const float bias = mine ? to_float(proj_b[layer * C + row]) : 0.0f;
    wait_for_input();

    float before[B];
    for (int b = 0; b < B; b++) {
        before[b] = mine ? load_fresh(x + b * C + row) : 0.0f;
        const int active = load_fresh(lengths + b) / KEYS + 1;
        for (int f = threadIdx.x; f < C / 4; f += PROJ_THREADS) {
            const int head = 4 * f / HS, d = 4 * f % HS;
            ys[b][f / (K / 4)][At::slot(f % (K / 4))] =
                merged<PARTS>(parts + (size_t(b) * NH + head) * PARTS * (HS + 4), active, d);
        }
    }
    __syncthreads();
    float sum[B];
    split_dot<PROJ_SPLIT, PROJ_THREADS / 32>(sum, weight, ys[0][0]);
    if (mine)
        for (int b = 0; b < B; b++) x[b * C + row] = before[b] + sum[b] + bias;
}

extern "C" __global__ void __launch_bounds__(FC_THREADS)
    expand(const Real* ln2_w, const Real* ln2_b, const Real* fc_w, const Real* fc_b, const float* x, float* h,
           int layer, float eps)
{
    using At = Spread<Real, C>;
    __shared__ float4 xs[B][At::FLOAT4S], gain[At::FLOAT4S], shift[At::FLOAT4S];
    const int lane = lane_id(), row = (blockIdx.x * (FC_THREADS / 32) + warp_id()) * FC_ROWS;

    Row<Real, C> weight[FC_ROWS];
#pragma unroll
    for (int r = 0; r < FC_ROWS; r++)
        weight[r].request(fc_w + (size_t(layer) * F + row + r) * C, lane, row + r < F);
    const bool mine = lane < FC_ROWS && row + lane < F;
    const float bias = mine ? to_float(fc_b[layer * F + row + lane]) : 0.0f;
    spread<Real, C>(gain, ln2_w + layer * C);
    spread<Real, C>(shift, ln2_b + layer * C);
    wait_for_input();

    for (int b = 0; b < B; b++)
        for (int f = threadIdx.x; f < C / 4; f += FC_THREADS)
            xs[b][At::slot(f)] = load_fresh(reinterpret_cast<const float4*>(x + b * C) + f);
    __syncthreads();
    for (int b = 0; b < B; b++) {
        float dots[FC_ROWS];
        dot_norm(dots, weight, xs[b], gain, shift, norm_of<Real, C>(xs[b], lane, eps), lane);
        const float sum = chosen(dots, lane) + bias;
        if (mine) h[b * F + row + lane] = activate<ACT>(sum);
    }
}

extern "C" __global__ void __launch_bounds__(FC2_THREADS)
    contract(const Real* fc2_w, const Real* fc2_b, const float* h, float* x, int layer)
{
    constexpr int K = F / FC2_SPLIT;
    using At = Spread<Real, K>;
    extern __shared__ float4 hs[];
    const int lane = lane_id(), warp = warp_id(), row = (blockIdx.x * (FC2_THREADS / 32) + warp) / FC2_SPLIT;

    Row<Real, K> weight[1];
    weight[0].request(fc2_w + (size_t(layer) * C + row) * F + warp % FC2_SPLIT * K, lane, row < C);
    const bool mine = lane == 0 && warp % FC2_SPLIT == 0 && row < C;
    const float bias = mine ? to_float(fc2_b[layer * C + row]) : 0.0f;
    wait_for_input();

    float before[B];
    for (int b = 0; b < B; b++) {
        before[b] = mine ? load_fresh(x + b * C + row) : 0.0f;
        for (int f = threadIdx.x; f < F / 4; f += FC2_THREADS)
            hs[(b * FC2_SPLIT + f / (K / 4)) * At::FLOAT4S + At::slot(f % (K / 4))] =
                load_fresh(reinterpret_cast<const float4*>(h + b * F) + f);
    }
    __syncthreads();
    float sum[B];
    split_dot<FC2_SPLIT, FC2_THREADS / 32>(sum, weight, hs);
    if (mine)
        for (int b = 0; b < B; b++) x[b * C + row] = before[b] + sum[b] + bias;
}

extern "C" __global__ void __launch_bounds__(HEAD_THREADS)
    head(const Real* lnf_w, const Real* lnf_b, const Real* head_w, const float* x, float* logits, float* best_value,
         int* best_index, float eps)
{
    constexpr int WARPS = HEAD_THREADS / 32;
    using At = Spread<Real, C>;
    __shared__ float4 xs[B][At::FLOAT4S], gain[At::FLOAT4S], shift[At::FLOAT4S];
    __shared__ Best winners[B][WARPS];
    const int lane = lane_id(), warp = warp_id();
    int row = (blockIdx.x * WARPS + warp) * HEAD_ROWS;

    Row<Real, C> weight[HEAD_ROWS];
#pragma unroll
    for (int r = 0; r < HEAD_ROWS; r++) weight[r].request(head_w + size_t(row + r) * C, lane, row + r < V);
    spread<Real, C>(gain, lnf_w);
    spread<Real, C>(shift, lnf_b);
    wait_for_input();

    for (int b = 0; b < B; b++)
        for (int f = threadIdx.x; f < C / 4; f += HEAD_THREADS)
            xs[b][At::slot(f)] = load_fresh(reinterpret_cast<const float4*>(x + b * C) + f);
    __syncthreads();
    for (int b = warp; b < B; b += WARPS) {  // each vector once, in place
        const Norm norm = norm_of<Real, C>(xs[b], lane, eps);
        for (int f = lane; f < At::FLOAT4S; f += WARP_SIZE) xs[b][f] = normalised(xs[b][f], norm, gain[f], shift[f]);
    }
    __syncthreads();
    Best best[B];
#pragma unroll
    for (int b = 0; b < B; b++) best[b] = {-INFINITY, INT_MAX};
    while (row < V) {
#pragma unroll
        for (int b = 0; b < B; b++) {
            float dots[HEAD_ROWS];
            dot(dots, weight, xs[b], lane);
#pragma unroll
            for (int r = 0; r < HEAD_ROWS; r++)
                if (row + r < V) best[b] = better(best[b], {dots[r], row + r});
            if (lane < HEAD_ROWS && row + lane < V) logits[size_t(b) * V + row + lane] = chosen(dots, lane);
        }
        row += gridDim.x * WARPS * HEAD_ROWS;
#pragma unroll
        for (int r = 0; r < HEAD_ROWS; r++) weight[r].request(head_w + size_t(row + r) * C, lane, row + r < V);
    }
    if (lane == 0)
#pragma unroll
        for (int b = 0; b < B; b++) winners[b][warp] = best[b];
    __syncthreads();
    for (int b = threadIdx.x; b < B; b += HEAD_THREADS) {
        Best winner = winners[b][0];
        for (int w = 1; w < WARPS; w++) winner = better(winner, winners[b][w]);
        best_value[b * gridDim.x + blockIdx.x] = winner.value;
        best_index[b * gridDim.x + blockIdx.x] = winner.index;
    }
}

extern "C" __global__ void __launch_bounds__(128)
    pick(const float* best_value, const int* best_index, int* next, int groups)
{
    __shared__ Best winners[4];
    const int b = blockIdx.x;
    wait_for_input(false);
    Best best = {-INFINITY, INT_MAX};
    for (int i = threadIdx.x; i < groups; i += 128)
        best = better(best, {load_fresh(best_value + b * groups + i), load_fresh(best_index + b * groups + i)});
    best = warp_best(best);
    if (lane_id() == 0) winners[warp_id()] = best;
    __syncthreads();
    if (threadIdx.x == 0) next[b] = better(better(winners[0], winners[1]), better(winners[2], winners[3])).index;
}
