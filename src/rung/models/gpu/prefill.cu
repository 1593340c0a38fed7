// What recorded passes need beside the operations of the ladders.
#include "quantised.cuh"
#include "rung.cuh"

// Keys and values of `layers` layers go from qkv (layers, B, T, NH + 2 NKV, HS) to the caches (layers, B, NKV, MAXT, HS).
template <int N>
__device__ __forceinline__ void keep_by(const Real* qkv, Real* k_cache, Real* v_cache, int64_t i, int B, int T, int NH,
                                        int NKV, int HS, int MAXT)
{
    const int chunks = NKV * HS / N;
    const int64_t part = i / chunks;  // (layer, b, t, key or value)
    const int at = int(i % chunks) * N, nh = at / HS, hs = at % HS;
    const int64_t row = part / 2, sequence = row / T;  // (layer, b, t) and (layer, b)
    const bool value = part % 2;
    const Real* from = qkv + (row * (NH + 2 * NKV) + NH + value * NKV) * HS + at;
    Real* to = (value ? v_cache : k_cache) + ((sequence * NKV + nh) * MAXT + row % T) * HS + hs;
    if (N == 1) *to = *from;
    else store_vec(to, load_vec(from));
}

extern "C" __global__ void keep(const Real* qkv, Real* k_cache, Real* v_cache, int layers, int B, int T, int NH, int NKV,
                                int HS, int MAXT)
{
    pdl_launch_dependents();
    pdl_wait();
    const bool whole = HS % VEC == 0;
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= int64_t(layers) * B * T * 2 * NKV * HS / (whole ? VEC : 1)) return;
    if (whole) keep_by<VEC>(qkv, k_cache, v_cache, i, B, T, NH, NKV, HS, MAXT);
    else keep_by<1>(qkv, k_cache, v_cache, i, B, T, NH, NKV, HS, MAXT);
}

// The same into caches of 8 bits, HS / 16 lanes a key: integers (layers, B, NKV, MAXT, HS) and scales (layers, B, NKV, MAXT).
extern "C" __global__ void keep_in_eight_bits(const Real* qkv, int8_t* k_cache, int8_t* v_cache, float* k_scales,
                                              float* v_scales, int layers, int B, int T, int NH, int NKV, int HS,
                                              int MAXT)
{
    pdl_launch_dependents();
    pdl_wait();
    const int lanes = HS / QUANTISED_EACH, lane = threadIdx.x % lanes;
    const int64_t keys = int64_t(layers) * B * T * 2 * NKV;
    const int64_t own = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / lanes, i = own < keys ? own : keys - 1;
    const int nh = int(i % NKV);
    const int64_t row = i / NKV / 2, sequence = row / T;  // (layer, b, t) and (layer, b)
    const bool value = i / NKV % 2;
    const Real* from = qkv + (row * (NH + 2 * NKV) + NH + value * NKV + nh) * HS + lane * QUANTISED_EACH;
    const Quantised found = quantised_from(lanes, from);
    if (own >= keys) return;
    const int64_t to = (sequence * NKV + nh) * MAXT + row % T;
    reinterpret_cast<uint4*>((value ? v_cache : k_cache) + to * HS)[lane] = found.bits;
    if (lane == 0) (value ? v_scales : k_scales)[to] = found.scale;
}

// Of y (B, T, A) and x (B, T, C) the rows of each prompt's last token: nothing else of the last layer is ever read.
extern "C" __global__ void last(const Real* y, const Real* x, const int* lengths, Real* y_last, Real* x_last, int T, int A,
                                int C)
{
    pdl_launch_dependents();
    pdl_wait();
    const int b = blockIdx.x;
    const int64_t row = int64_t(b) * T + lengths[b] - 1;
    for (int a = threadIdx.x; a < A; a += blockDim.x) y_last[int64_t(b) * A + a] = y[row * A + a];
    for (int c = threadIdx.x; c < C; c += blockDim.x) x_last[int64_t(b) * C + c] = x[row * C + c];
}

// The rows of wte (V, C) of tokens times a scale, one block for each.
extern "C" __global__ void embed(const int* tokens, const Real* wte, Real* out, int C, float scale)
{
    pdl_wait();
    pdl_launch_dependents();
    const Real* from = wte + int64_t(__ldcg(tokens + blockIdx.x)) * C;
    Real* to = out + int64_t(blockIdx.x) * C;
    for (int c = threadIdx.x; c < C; c += blockDim.x) to[c] = from_float<Real>(to_float(from[c]) * scale);
}

// The same, and the rows of wpe of the tokens' places.
extern "C" __global__ void embed_placed(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, Real* out, int C,
                                        float scale)
{
    pdl_wait();
    pdl_launch_dependents();
    const Real* from = wte + int64_t(__ldcg(tokens + blockIdx.x)) * C;
    const Real* place = wpe + int64_t(__ldcg(lengths + blockIdx.x)) * C;
    Real* to = out + int64_t(blockIdx.x) * C;
    for (int c = threadIdx.x; c < C; c += blockDim.x) to[c] = from_float<Real>(to_float(from[c]) * scale + to_float(place[c]));
}

const int SWIGLU = 3;  // in the model's table of activations; otherwise GeGLU by tanh

__device__ __forceinline__ float gated(float g, float x, int activation)
{
    if (activation == SWIGLU) return g / (1.0f + __expf(-g)) * x;
    return 0.5f * g * (1.0f + tanhf(0.7978845608f * (g + 0.044715f * g * g * g))) * x;
}

// A gated activation of neighbours: x (N, 2), a gate and its factor; `each` results of a thread, 1 or those of 16 bytes.
extern "C" __global__ void gate(const Real* x, Real* out, int N, int each, int activation)
{
    pdl_launch_dependents();
    pdl_wait();
    const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * each;
    if (i >= N) return;
    if (each == 1) {
        out[i] = from_float<Real>(gated(to_float(x[2 * i]), to_float(x[2 * i + 1]), activation));
        return;
    }
    const Vec16<Real> both = load_vec(x + 2 * i);
    Vec<Real, VEC / 2> found;
#pragma unroll
    for (int j = 0; j < VEC / 2; j++)
        found[j] = from_float<Real>(gated(to_float(both[2 * j]), to_float(both[2 * j + 1]), activation));
    *reinterpret_cast<Vec<Real, VEC / 2>*>(out + i) = found;
}

// The larger of two logits; of equal ones the token that comes first.
__device__ __forceinline__ void take_better(float& best, int& at, float other, int other_at)
{
    if (other > best || (other == best && other_at < at)) best = other, at = other_at;
}

// The block's best, in thread 0.
__device__ __forceinline__ void best_of_block(float& best, int& at)
{
    __shared__ float values[WARP_SIZE];
    __shared__ int places[WARP_SIZE];
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, best, offset);
        take_better(best, at, other, __shfl_xor_sync(ALL_LANES, at, offset));
    }
    if (lane_id() == 0) values[warp_id()] = best, places[warp_id()] = at;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < block_threads() / WARP_SIZE; w++) take_better(best, at, values[w], places[w]);
}

// The likeliest token of a part of a row of logits, which are also written in float32 if they are kept; `parts` blocks for each row.
extern "C" __global__ void best_of_parts(const Real* narrow, float* logits, float* best, int* at, int V, int parts, int keep)
{
    pdl_wait();
    pdl_launch_dependents();
    const int step = V % VEC == 0 ? VEC : 1, each = ceil_div(V, parts * step) * step;
    const int row = blockIdx.x / parts, first = blockIdx.x % parts * each, end = min(V, first + each);
    float own = -INFINITY;
    int place = INT_MAX;
    for (int v = first + threadIdx.x * step; v < end; v += blockDim.x * step) {
        const Real* from = narrow + int64_t(row) * V + v;
        Vec16<Real> some;
        if (step == VEC) some = load_vec(from);
        else some[0] = *from;
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            if (i >= step) break;
            const float logit = to_float(some[i]);
            if (keep) logits[int64_t(row) * V + v + i] = logit;
            take_better(own, place, logit, v + i);
        }
    }
    best_of_block(own, place);
    if (threadIdx.x == 0) best[blockIdx.x] = own, at[blockIdx.x] = place;
}

extern "C" __global__ void best_of_all(const float* best, const int* at, int* next, int parts)
{
    pdl_wait();
    pdl_launch_dependents();
    float own = -INFINITY;
    int place = INT_MAX;
    for (int p = threadIdx.x; p < parts; p += blockDim.x)
        take_better(own, place, __ldcg(best + blockIdx.x * parts + p), __ldcg(at + blockIdx.x * parts + p));
    best_of_block(own, place);
    if (threadIdx.x == 0) next[blockIdx.x] = place;
}
