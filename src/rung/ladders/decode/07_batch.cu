/*---
idea   = "Many sequences are the columns of a matrix product: tensor cores multiply tiles of weights by all columns, fragments come directly from memory in 16-byte pieces because both operands permute the depth in the same way, and warps split the depth."
expect = "At 64 sequences the arithmetic is a tenth of the tensor cores' capacity: a step costs one pass over the weights, one over the caches, and seven short kernels per layer."
found  = "On an H200 at one sequence of gpt2 in bf16 280 us per step, slower than rung 5 in 8 bits (239 us, 0.86x) and rung 5 (201 us, 0.72x); no library was timed in bf16, nor this rung in f32. Presumably one column leaves nearly all of a tile empty, and seven kernels per layer add latency. The expectation is for 64 sequences, which this bench did not time."
provenance = "ours"
from   = "decode/4"
rewrite = "Products of matrices on tensor cores replace products of one row; all kernels between them are written for many rows."
dtypes = ["bf16", "f16"]
dims   = ["B", "L", "C", "NH", "F", "V", "MAXT"]
needs  = [
  "sm >= 80",
  "C % 32 == 0 and F % 32 == 0",
  "HS % 8 == 0 and 32 % (HS // 8) == 0",
  "B <= 1024",
]
[tune]
COLUMNS = [64, 32, 128]
QKV_TILES = [2, 1, 4]
PROJ_TILES = [2, 1]
PROJ_SPLITS = [4, 2, 1]
FC_TILES = [2, 1, 4]
FC2_TILES = [2, 1, 4]
FC2_SPLITS = [4, 8, 2]
HEAD_TILES = [4, 2]
KEY_WARPS = [4, 2, 8]
KEY_LOADS = [8, 4]
[define]
ACT = "act"
BY_LAYER = "by_layer"
COLS = "min(COLUMNS, round_up(B, 8))"
[bind]
groups = "ceil_div(V, 16 * HEAD_TILES)"
[buffers.x]
shape = ["B", "C"]
dtype = "f32"
[buffers.n]
shape = ["round_up(B, COLUMNS)", "C"]
[buffers.q]
shape = ["B", "C"]
dtype = "f32"
[buffers.y]
shape = ["round_up(B, COLUMNS)", "C"]
[buffers.h]
shape = ["round_up(B, COLUMNS)", "F"]
[buffers.proj_parts]
shape = ["PROJ_SPLITS", "B", "C"]
dtype = "f32"
[buffers.fc2_parts]
shape = ["FC2_SPLITS", "B", "C"]
dtype = "f32"
[buffers.best_value]
shape = ["B", "ceil_div(V, 16 * HEAD_TILES)"]
dtype = "f32"
[buffers.best_index]
shape = ["B", "ceil_div(V, 16 * HEAD_TILES)"]
dtype = "i32"
[[launch]]
kernel = "embed"
grid   = "B"
block  = 256
pdl    = true
[[launch]]
kernel = "add_norm"
grid   = "B"
block  = 256
pdl    = true
bind   = { gain = "ln1_w", shift = "ln1_b", parts = "fc2_parts", bias = "fc2_b", splits = "FC2_SPLITS if layer > 0 else 0", row = "layer - 1" }
each   = { layer = "L" }
[[launch]]
kernel = "project_qkv"
grid   = ["ceil_div(3 * C, 16 * QKV_TILES)", "ceil_div(B, min(COLUMNS, round_up(B, 8)))"]
block  = 256
shared = "4 * 16 * QKV_TILES * (min(COLUMNS, round_up(B, 8)) + 4) * 4"
pdl    = true
each   = { layer = "L" }
[[launch]]
kernel = "attend"
grid   = ["NH", "B"]
block  = "KEY_WARPS * 32"
pdl    = true
each   = { layer = "L" }
[[launch]]
kernel = "project"
grid   = ["ceil_div(C, 16 * PROJ_TILES)", "ceil_div(B, min(COLUMNS, round_up(B, 8)))", "PROJ_SPLITS"]
block  = 256
shared = "4 * 16 * PROJ_TILES * (min(COLUMNS, round_up(B, 8)) + 4) * 4"
pdl    = true
each   = { layer = "L" }
[[launch]]
kernel = "add_norm"
grid   = "B"
block  = 256
pdl    = true
bind   = { gain = "ln2_w", shift = "ln2_b", parts = "proj_parts", bias = "proj_b", splits = "PROJ_SPLITS", row = "layer" }
each   = { layer = "L" }
[[launch]]
kernel = "expand"
grid   = ["ceil_div(F, 16 * FC_TILES)", "ceil_div(B, min(COLUMNS, round_up(B, 8)))"]
block  = 256
shared = "4 * 16 * FC_TILES * (min(COLUMNS, round_up(B, 8)) + 4) * 4"
pdl    = true
each   = { layer = "L" }
[[launch]]
kernel = "contract"
grid   = ["ceil_div(C, 16 * FC2_TILES)", "ceil_div(B, min(COLUMNS, round_up(B, 8)))", "FC2_SPLITS"]
block  = 256
shared = "4 * 16 * FC2_TILES * (min(COLUMNS, round_up(B, 8)) + 4) * 4"
pdl    = true
each   = { layer = "L" }
[[launch]]
kernel = "add_norm"
grid   = "B"
block  = 256
pdl    = true
bind   = { gain = "lnf_w", shift = "lnf_b", parts = "fc2_parts", bias = "fc2_b", splits = "FC2_SPLITS", row = "L - 1", layer = 0 }
[[launch]]
kernel = "head"
grid   = ["ceil_div(V, 16 * HEAD_TILES)", "ceil_div(B, min(COLUMNS, round_up(B, 8)))"]
block  = 256
shared = "4 * 16 * HEAD_TILES * (min(COLUMNS, round_up(B, 8)) + 4) * 4"
pdl    = true
[[launch]]
kernel = "pick"
grid   = "B"
block  = 128
pdl    = true
---*/
#include "batch_tile.cuh"

using namespace decode;

__device__ __forceinline__ void wait_for_input()
{
    pdl_wait();
    pdl_launch_dependents();
}

// ---- matrix products --------------------------------------------------------------------------------------------

// Computes the block's product and passes each (row, sequence, sum) to `use`; neighbouring threads get neighbouring rows.
// Returns the sums, rows of STRIDE.
template <int TILES, int K, class Use>
__device__ __forceinline__ const float* product(const Real* weight, const Real* columns, int rows, int splits, Use use)
{
    extern __shared__ float shared[];
    using T = Tile<TILES, K>;
    const int row0 = blockIdx.x * T::ROWS, b0 = blockIdx.y * COLS;
    const int share = (T::STEPS + splits - 1) / splits, begin = blockIdx.z * share;
    const int first = begin + warp_id(), last = min(begin + share, T::STEPS);
    T tile;
    if (first < last) tile.request(weight, row0, rows, first);
    wait_for_input();
    tile.multiply(weight, columns + size_t(b0) * K, row0, rows, first, last);
    const float* sums = tile.total(shared);
    for (int i = threadIdx.x; i < T::ROWS * COLS; i += WARPS * WARP_SIZE) {
        const int row = row0 + i % T::ROWS, b = b0 + i / T::ROWS;
        if (row < rows && b < B) use(row, b, sums[i % T::ROWS * T::STRIDE + i / T::ROWS]);
    }
    return sums;
}

extern "C" __global__ void __launch_bounds__(256) project_qkv(const int* lengths, const Real* qkv_w, const Real* qkv_b,
                                                              const Real* n, float* q, Real* k_cache, Real* v_cache, int layer)
{
    product<QKV_TILES, C>(qkv_w + size_t(layer) * 3 * C * C, n, 3 * C, 1, [&](int row, int b, float sum) {
        sum += to_float(qkv_b[layer * 3 * C + row]);
        const int channel = row % C, part = row / C;
        if (part == 0) {
            q[b * C + channel] = sum;
        } else {
            Real* cache = part == 1 ? k_cache : v_cache;
            cache[cached(layer, b, channel / HS, load_fresh(lengths + b)) + channel % HS] = from_float<Real>(sum);
        }
    });
}

extern "C" __global__ void __launch_bounds__(256) project(const Real* proj_w, const Real* y, float* proj_parts, int layer)
{
    float* parts = proj_parts + size_t(blockIdx.z) * B * C;
    product<PROJ_TILES, C>(proj_w + size_t(layer) * C * C, y, C, PROJ_SPLITS,
                           [&](int row, int b, float sum) { parts[b * C + row] = sum; });
}

extern "C" __global__ void __launch_bounds__(256) expand(const Real* fc_w, const Real* fc_b, const Real* n, Real* h, int layer)
{
    product<FC_TILES, C>(fc_w + size_t(layer) * F * C, n, F, 1, [&](int row, int b, float sum) {
        h[size_t(b) * F + row] = from_float<Real>(activate<ACT>(sum + to_float(fc_b[layer * F + row])));
    });
}

extern "C" __global__ void __launch_bounds__(256) contract(const Real* fc2_w, const Real* h, float* fc2_parts, int layer)
{
    float* parts = fc2_parts + size_t(blockIdx.z) * B * C;
    product<FC2_TILES, F>(fc2_w + size_t(layer) * C * F, h, C, FC2_SPLITS,
                          [&](int row, int b, float sum) { parts[b * C + row] = sum; });
}

extern "C" __global__ void __launch_bounds__(256)
    head(const Real* head_w, const Real* n, float* logits, float* best_value, int* best_index)
{
    using T = Tile<HEAD_TILES, C>;
    const float* sums =
        product<HEAD_TILES, C>(head_w, n, V, 1, [&](int row, int b, float sum) { logits[size_t(b) * V + row] = sum; });
    const int row0 = blockIdx.x * T::ROWS;
    for (int b = warp_id(); b < COLS && blockIdx.y * COLS + b < B; b += WARPS) {
        Best best = {-INFINITY, INT_MAX};
        for (int r = lane_id(); r < T::ROWS && row0 + r < V; r += WARP_SIZE)
            best = better(best, {sums[r * T::STRIDE + b], row0 + r});
        best = warp_best(best);
        if (lane_id() == 0) {
            const size_t at = size_t(blockIdx.y * COLS + b) * gridDim.x + blockIdx.x;
            best_value[at] = best.value;
            best_index[at] = best.index;
        }
    }
}

// ---- between the products ---------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(256)
    embed(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, float* x)
{
    const int b = blockIdx.x;
    wait_for_input();
    const size_t token = size_t(load_fresh(tokens + b)) * C, position = size_t(load_fresh(lengths + b)) * C;
    for (int f = threadIdx.x; f < C / 4; f += 256) {
        const float4 e = four_floats(wte + token + 4 * f), p = four_floats(wpe + position + 4 * f);
        reinterpret_cast<float4*>(x + b * C)[f] = make_float4(e.x + p.x, e.y + p.y, e.z + p.z, e.w + p.w);
    }
}

// The partial sums of the previous product are added to the residual stream, and its layer norm is the next product's input.
extern "C" __global__ void __launch_bounds__(256)
    add_norm(const float* parts, const Real* bias, const Real* gain, const Real* shift, float* x, Real* n, int splits, int row,
             int layer, float eps)
{
    constexpr int EACH = (C / 4 + 255) / 256;
    const int b = blockIdx.x;
    float4 v[EACH];
    wait_for_input();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int f = threadIdx.x + 256 * i;
        if (f >= C / 4) continue;
        v[i] = load_fresh(reinterpret_cast<const float4*>(x + b * C) + f);
        if (splits > 0) {
            const float4 add = four_floats(bias + row * C + 4 * f);
            v[i] = make_float4(v[i].x + add.x, v[i].y + add.y, v[i].z + add.z, v[i].w + add.w);
            // perhaps never one turn: products have several splits or none
            for (int s = 0; s < splits; s++) {
                const float4 p = load_fresh(reinterpret_cast<const float4*>(parts + (size_t(s) * B + b) * C) + f);
                v[i] = make_float4(v[i].x + p.x, v[i].y + p.y, v[i].z + p.z, v[i].w + p.w);
            }
            reinterpret_cast<float4*>(x + b * C)[f] = v[i];
        }
        sum += (v[i].x + v[i].y) + (v[i].z + v[i].w);
    }
    const float mean = block_sum(sum) / C;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (threadIdx.x + 256 * i >= C / 4) continue;
        v[i] = make_float4(v[i].x - mean, v[i].y - mean, v[i].z - mean, v[i].w - mean);
        squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
    }
    const Norm own = {0.0f, rsqrtf(block_sum(squares) / C + eps)};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int f = threadIdx.x + 256 * i;
        if (f >= C / 4) continue;
        const float4 g = four_floats(gain + layer * C + 4 * f), s = four_floats(shift + layer * C + 4 * f);
        const float4 out = normalised(v[i], own, g, s);
        *reinterpret_cast<uint2*>(n + size_t(b) * C + 4 * f) = make_uint2(pack2<Real>(out.x, out.y), pack2<Real>(out.z, out.w));
    }
}

// A block loops over all keys of one head of one sequence; each warp keeps a running softmax, merged at the end.
extern "C" __global__ void __launch_bounds__(KEY_WARPS * 32)
    attend(const int* lengths, const float* q, const Real* k_cache, const Real* v_cache, Real* y, int layer, float scale)
{
    using Share = Keys<KEY_LOADS>;
    __shared__ float ms[KEY_WARPS], ls[KEY_WARPS], ys[KEY_WARPS][HS];
    const int head = blockIdx.x, b = blockIdx.y, lane = lane_id(), warp = warp_id(), length = load_fresh(lengths + b);
    const Real* keys = k_cache + cached(layer, b, head, 0);
    const Real* values = v_cache + cached(layer, b, head, 0);
    Share share;
    int first = warp * Share::COUNT;
    share.request(keys, values, first, 0, length, lane);
    wait_for_input();
    float query[VEC], sum[VEC] = {}, largest = -INFINITY, total = 0.0f;
#pragma unroll
    for (int j = 0; j < VEC; j += 4) {
        const float4 f = load_fresh(reinterpret_cast<const float4*>(q + b * C + head * HS + lane % Share::LANES * VEC + j));
        query[j] = f.x, query[j + 1] = f.y, query[j + 2] = f.z, query[j + 3] = f.w;
    }
    for (; first <= length; first += KEY_WARPS * Share::COUNT) {
        share.request(keys, values, first, length, length + 1, lane);
        float part[VEC], m, l;
        share.attend(query, BY_LAYER ? scale / (layer + 1) : scale, first, length + 1, lane, m, l, part);
        share.request(keys, values, first + KEY_WARPS * Share::COUNT, 0, length, lane);
        const float top = fmaxf(m, largest), old = expf(largest - top), now = expf(m - top);
        total = total * old + l * now;
#pragma unroll
        for (int j = 0; j < VEC; j++) sum[j] = sum[j] * old + part[j] * now;
        largest = top;
    }
    if (lane == 0) ms[warp] = largest, ls[warp] = total;
    if (lane < Share::LANES)
#pragma unroll
        for (int j = 0; j < VEC; j++) ys[warp][lane * VEC + j] = sum[j];
    __syncthreads();
    float top = ms[0];
#pragma unroll
    for (int w = 1; w < KEY_WARPS; w++) top = fmaxf(top, ms[w]);
    for (int d = threadIdx.x; d < HS; d += KEY_WARPS * WARP_SIZE) {
        float out = 0.0f, all = 0.0f;
#pragma unroll
        for (int w = 0; w < KEY_WARPS; w++) {
            const float weight = ms[w] == -INFINITY ? 0.0f : expf(ms[w] - top);
            out += weight * ys[w][d];
            all += weight * ls[w];
        }
        y[size_t(b) * C + head * HS + d] = from_float<Real>(out / all);
    }
}

extern "C" __global__ void __launch_bounds__(128) pick(const float* best_value, const int* best_index, int* next, int groups)
{
    __shared__ Best winners[4];
    const int b = blockIdx.x;
    wait_for_input();
    Best best = {-INFINITY, INT_MAX};
    for (int i = threadIdx.x; i < groups; i += 128)
        best = better(best, {load_fresh(best_value + size_t(b) * groups + i), load_fresh(best_index + size_t(b) * groups + i)});
    best = warp_best(best);
    if (lane_id() == 0) winners[warp_id()] = best;
    __syncthreads();
    if (threadIdx.x == 0) next[b] = better(better(winners[0], winners[1]), better(winners[2], winners[3])).index;
}
