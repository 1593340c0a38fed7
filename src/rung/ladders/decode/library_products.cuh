// What the twelfth decode rung does between the library's products: a kernel for the embedding, one for each norm, one for
// attention, and two behind the head. Each may begin while its predecessor ends, and reads what that wrote behind pdl_wait.
#pragma once
#include "decode.cuh"

using namespace decode;

__device__ __forceinline__ void wait_for_input()
{
    pdl_wait();
    pdl_launch_dependents();
}

// ---- the residual stream ----------------------------------------------------------------------------------------

// A block's row of the stream, four numbers a thread and round, with the norm's gain and shift.
struct StreamRow
{
    static constexpr int EACH = (C / 4 + ROW_THREADS - 1) / ROW_THREADS;

    float4 v[EACH], gain[EACH], shift[EACH];

    template <class Do>
    __device__ __forceinline__ void each(Do what)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (int(threadIdx.x) + ROW_THREADS * i < C / 4) what(i, int(threadIdx.x) + ROW_THREADS * i);
    }

    // Weights: nobody writes them, so they need not wait.
    __device__ __forceinline__ void request(const Real* gains, const Real* shifts)
    {
        each([&](int i, int f) { gain[i] = four_floats(gains + 4 * f), shift[i] = four_floats(shifts + 4 * f); });
    }

    // Into the stream, and its layer norm to where the next product reads.
    __device__ __forceinline__ void store(float* x, Real* n, float eps)
    {
        const int b = blockIdx.x;
        float sum = 0.0f, squares = 0.0f;
        each([&](int i, int f) {
            reinterpret_cast<float4*>(x + size_t(b) * C)[f] = v[i];
            sum += (v[i].x + v[i].y) + (v[i].z + v[i].w);
        });
        const float mean = block_sum(sum) / C;
        each([&](int i, int) {
            v[i] = make_float4(v[i].x - mean, v[i].y - mean, v[i].z - mean, v[i].w - mean);
            squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
        });
        const Norm centred = {0.0f, rsqrtf(block_sum(squares) / C + eps)};
        each([&](int i, int f) {
            const float4 out = normalised(v[i], centred, gain[i], shift[i]);
            *reinterpret_cast<uint2*>(n + size_t(b) * C + 4 * f) =
                make_uint2(pack2<Real>(out.x, out.y), pack2<Real>(out.z, out.w));
        });
    }
};

__device__ __forceinline__ float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    embed(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, const Real* gains, const Real* shifts,
          float* x, Real* n, float eps)
{
    const int b = blockIdx.x;
    StreamRow row;
    row.request(gains, shifts);
    wait_for_input();
    const size_t token = size_t(load_fresh(tokens + b)) * C, position = size_t(load_fresh(lengths + b)) * C;
    row.each([&](int i, int f) { row.v[i] = plus(four_floats(wte + token + 4 * f), four_floats(wpe + position + 4 * f)); });
    row.store(x, n, eps);
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    add_norm(const float* product, const Real* bias, const Real* gains, const Real* shifts, float* x, Real* n, float eps)
{
    const size_t start = size_t(blockIdx.x) * C;
    StreamRow row;
    row.request(gains, shifts);
    row.each([&](int i, int f) { row.v[i] = four_floats(bias + 4 * f); });
    wait_for_input();
    row.each([&](int i, int f) {
        const float4 before = load_fresh(reinterpret_cast<const float4*>(x + start) + f);
        row.v[i] = plus(before, plus(row.v[i], load_fresh(reinterpret_cast<const float4*>(product + start) + f)));
    });
    row.store(x, n, eps);
}

// ---- attention --------------------------------------------------------------------------------------------------

constexpr int LANES = HS / VEC;             // on one key, 16 bytes each
constexpr int AT_ONCE = WARP_SIZE / LANES;  // keys in one request of a warp
constexpr int COUNT = KEY_LOADS * AT_ONCE;
constexpr int KEY_BLOCKS = KEY_RESIDENT > KEY_WARPS ? KEY_RESIDENT / KEY_WARPS : 1;
static_assert(HS % VEC == 0 && WARP_SIZE % LANES == 0, "a key must be 1, 2, 4 ... 32 pieces of 16 bytes");

// Some keys or values of a head: request i holds number t + i * AT_ONCE, of which a lane has a piece. `from` is the lane's
// piece of the head's first.
struct Pieces
{
    uint4 bits[KEY_LOADS];

    __device__ __forceinline__ void request(const uint4* from, int t, int end)
    {
        from += t * LANES;
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) {
            bits[i] = zero_bits();
            if (t + i * AT_ONCE < end) bits[i] = __ldcg(from + i * AT_ONCE * LANES);
        }
    }
};

// The scalar product with a key, in each of the lanes on it.
__device__ __forceinline__ float score(const float (&q)[VEC], const uint4& key)
{
    float dot = 0.0f;
#pragma unroll
    for (int j = 0; j < VEC; j++) dot += weight_at(key, j, (const Real*)nullptr) * q[j];
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(ALL_LANES, dot, offset);
    return dot;
}

// A block is one head of one sequence, and its warps take turns at the keys. The cached ones are asked for before the
// new query is there; keys are asked for again as soon as their scores are known, while the values are still added up.
// The new key and value go from the packed product into the caches, and are where the first warp's softmax begins.
extern "C" __global__ void __launch_bounds__(KEY_WARPS * 32, KEY_BLOCKS)
    attend(const int* lengths, const Real* qkv, Real* k_cache, Real* v_cache, Real* y, int layer, float scale)
{
    __shared__ float ms[KEY_WARPS], ls[KEY_WARPS], ys[KEY_WARPS][HS];
    const int head = blockIdx.x, b = blockIdx.y, lane = lane_id(), warp = warp_id(), length = load_fresh(lengths + b);
    uint4* keys = reinterpret_cast<uint4*>(k_cache + cached(layer, b, head, 0)) + lane % LANES;
    uint4* values = reinterpret_cast<uint4*>(v_cache + cached(layer, b, head, 0)) + lane % LANES;
    const int own = lane / LANES;
    int first = warp * COUNT;
    Pieces k, v;
    k.request(keys, first + own, length);
    v.request(values, first + own, length);
    wait_for_input();

    const uint4* fresh = reinterpret_cast<const uint4*>(qkv + size_t(b) * 3 * C + head * HS) + lane % LANES;
    const uint4 query = __ldcg(fresh);
    float q[VEC], sum[VEC] = {}, m = -INFINITY, l = 0.0f;
#pragma unroll
    for (int j = 0; j < VEC; j++) q[j] = weight_at(query, j, (const Real*)nullptr) * (scale * 1.44269504f);  // for exp2
    if (warp == 0) {
        const uint4 key = __ldcg(fresh + C / VEC), value = __ldcg(fresh + 2 * C / VEC);
        m = score(q, key);
        if (lane < LANES) {
            l = 1.0f;
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[j] = weight_at(value, j, (const Real*)nullptr);
            keys[length * LANES] = key;
            values[length * LANES] = value;
        }
    }
#pragma unroll 1
    for (; first < length; first += KEY_WARPS * COUNT) {
        const int next = first + KEY_WARPS * COUNT;
        float s[KEY_LOADS], top = m;
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) {
            const float dot = score(q, k.bits[i]);
            s[i] = first + i * AT_ONCE + own < length ? dot : -INFINITY;
            top = fmaxf(top, s[i]);
        }
        k.request(keys, next + own, length);
#pragma unroll
        for (int offset = WARP_SIZE / 2; offset >= LANES; offset /= 2)
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, offset));
        const float shrink = exp2f(m - top);
        m = top;
        l *= shrink;
#pragma unroll
        for (int j = 0; j < VEC; j++) sum[j] *= shrink;
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) {
            const float p = exp2f(s[i] - m);
            l += p;
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[j] += p * weight_at(v.bits[i], j, (const Real*)nullptr);
        }
        v.request(values, next + own, length);
    }
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset >= LANES; offset /= 2) {
        l += __shfl_xor_sync(ALL_LANES, l, offset);
#pragma unroll
        for (int j = 0; j < VEC; j++) sum[j] += __shfl_xor_sync(ALL_LANES, sum[j], offset);
    }

    if (lane == 0) ms[warp] = m, ls[warp] = l;
    if (lane < LANES)
#pragma unroll
        for (int j = 0; j < VEC; j++) ys[warp][lane * VEC + j] = sum[j];
    __syncthreads();
    for (int d = threadIdx.x; d < HS; d += KEY_WARPS * WARP_SIZE) {
        float top = ms[0], out = 0.0f, all = 0.0f;
#pragma unroll
        for (int w = 1; w < KEY_WARPS; w++) top = fmaxf(top, ms[w]);
#pragma unroll
        for (int w = 0; w < KEY_WARPS; w++) {
            const float weight = exp2f(ms[w] - top);  // 0 for a warp without keys; the first always has one
            out += weight * ys[w][d];
            all += weight * ls[w];
        }
        y[size_t(b) * C + head * HS + d] = from_float<Real>(out / all);
    }
}

// ---- behind the head --------------------------------------------------------------------------------------------

constexpr int GATHER_THREADS = 256, GATHER_WARPS = GATHER_THREADS / WARP_SIZE, IN_FLIGHT = 8;

template <int WARPS>
__device__ __forceinline__ Best block_best(Best best)
{
    __shared__ Best winners[WARPS];
    best = warp_best(best);
    if (lane_id() == 0) winners[warp_id()] = best;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++) best = better(best, winners[w]);
    return best;
}

// `columns` logits of a row, which are those from `from` on, to their place; gives the largest of the thread's own.
__device__ __forceinline__ Best copy_columns(const float* wide, float* logits, int begin, int end, int from)
{
    Best best = {-INFINITY, INT_MAX};
    for (int i = begin + int(threadIdx.x); i < end; i += IN_FLIGHT * GATHER_THREADS) {
        float value[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++)
            value[u] = i + u * GATHER_THREADS < end ? __ldcg(wide + i + u * GATHER_THREADS) : -INFINITY;
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) {
            const int at = i + u * GATHER_THREADS;
            if (at < end) logits[from + at] = value[u];
            if (at < end) best = better(best, {value[u], from + at});
        }
    }
    return best;
}

// The last few logits of a row, which no aligned product holds: a warp for each.
__device__ __forceinline__ Best last_columns(const Real* n, const Real* head_w, float* logits)
{
    Best best = {-INFINITY, INT_MAX};
    for (int token = WHOLE + warp_id(); token < V; token += GATHER_WARPS) {
        const uint4* row = reinterpret_cast<const uint4*>(head_w + size_t(token) * C);
        float sum = 0.0f;
#pragma unroll 4
        for (int p = lane_id(); p < C / VEC; p += WARP_SIZE) {
            const uint4 weight = load_no_allocate(row + p), input = __ldcg(reinterpret_cast<const uint4*>(n) + p);
#pragma unroll
            for (int j = 0; j < VEC; j++)
                sum += weight_at(weight, j, (const Real*)nullptr) * weight_at(input, j, (const Real*)nullptr);
        }
        sum = warp_sum(sum);
        if (lane_id() == 0) logits[token] = sum;
        best = better(best, {sum, token});
    }
    return best;
}

// `chunks` blocks share the columns of a row of `wide`; one more, where it is launched, has the last ones.
extern "C" __global__ void __launch_bounds__(GATHER_THREADS)
    gather(const float* wide, const Real* n, const Real* head_w, float* logits, float* best_value, int* best_index, int from,
           int columns, int chunks, int slot, int slots)
{
    const int b = blockIdx.y, chunk = blockIdx.x;
    float* row = logits + size_t(b) * V;
    wait_for_input();
    Best best;
    if (chunk < chunks) {
        const int share = ceil_div(ceil_div(columns, chunks), WARP_SIZE) * WARP_SIZE;
        best = copy_columns(wide + size_t(b) * columns, row, chunk * share, min(columns, (chunk + 1) * share), from);
    } else {
        best = last_columns(n + size_t(b) * C, head_w, row);
    }
    best = block_best<GATHER_WARPS>(best);
    if (threadIdx.x == 0) {
        const size_t at = size_t(b) * slots + slot + chunk;
        best_value[at] = best.value, best_index[at] = best.index;
    }
}

extern "C" __global__ void __launch_bounds__(32) pick(const float* best_value, const int* best_index, int* next, int slots)
{
    const int b = blockIdx.x;
    wait_for_input();
    Best best = {-INFINITY, INT_MAX};
    for (int i = threadIdx.x; i < slots; i += WARP_SIZE)
        best = better(best, {load_fresh(best_value + size_t(b) * slots + i), load_fresh(best_index + size_t(b) * slots + i)});
    best = warp_best(best);
    if (threadIdx.x == 0) next[b] = best.index;
}
