/*---
idea   = "One launch: a cluster's blocks share the keys of a group, and request them first; each block turns the group's queries itself, the first also the new key, and the blocks merge through distributed shared memory."
expect = "One launch of 3 us for contexts up to 1,000 tokens, where separate kernels take three. For many texts a cluster is one block, and the copy rate is the limit."
found  = "On an H200 4.8 us for SmolLM2's heads with 256 keys in bf16, 6.4 for Llama-3.2-1B's with 1,024 (rung 1: 72.7; 6.7 without lines asked for early) and 23.7 with 8,192, 17 % of the bandwidth: a cluster per group of queries leaves multiprocessors idle. With 64 texts the early lines cost 11 %, so that only clusters ask for them."
rewrite = "Lanes share a key in vectors of 16 bytes instead of a warp sharing it in single channels, for all queries of a group."
dtypes = ["f32", "f16", "bf16"]
needs  = ["HS * sizeof_real % 16 == 0 and 32 % (HS * sizeof_real // 16) == 0", "NH // NKV <= 16", "NH // NKV * (16 // sizeof_real) <= 64",
          "NKV <= 65535 and B <= 65535", "SHARED <= 200000"]
[model]
serves = { any = 1 }
untuned = [{ when = "B * NKV >= 256", WARPS = 4, LOADS = 2 }]  # smaller blocks keep more keys in flight
[tune]
WARPS = [8, 4]
LOADS = [4, 2]  # keys per lane and round
[let]
GROUP  = "NH // NKV"
SPLITS = "8 if B * NKV <= 16 else 4 if B * NKV <= 32 else 2 if B * NKV <= 64 else 1"
SHARED = "4 * (GROUP * HS + WARPS * GROUP * (HS + 2) + GROUP * (HS + 4)) + 2 * HS * sizeof_real"
[define]
HS     = "HS"
GROUP  = "GROUP"
SPLITS = "SPLITS"
[[launch]]
kernel  = "rope_cached_attention"
grid    = ["SPLITS", "NKV", "B"]
block   = "32 * WARPS"
cluster = "SPLITS"
shared  = "SHARED"
pdl     = true
---*/
#include "block_cluster.cuh"

constexpr int THREADS = 32 * WARPS, HALF = HS / 2, PAIRS = ceil_div(HALF, WARP_SIZE);
constexpr int LANES = HS / VEC, AT_ONCE = WARP_SIZE / LANES;  // lanes per key, keys per request
constexpr int PART = HS + 4;                                  // output, maximum, sum, and up to a multiple of 16 bytes
constexpr float LOG2 = 1.4426950408889634f;

// Asks for a line of the L2 without waiting for it, and without reading it.
__device__ __forceinline__ void prefetch_line(const void* address)
{
#if defined(__CUDA_ARCH__)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

// One head by one warp: normalised if there is a weight, turned, and times `scale`.
template <class Store>
__device__ __forceinline__ void turn(const Real* in, const Real* weight, const float* cosines, const float* sines,
                                     int interleaved, float eps, float scale, Store store)
{
    float a[PAIRS], c[PAIRS], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int pair = lane_id() + i * WARP_SIZE;
        a[i] = c[i] = 0.0f;
        if (pair >= HALF) continue;
        a[i] = to_float(in[interleaved ? 2 * pair : pair]), c[i] = to_float(in[interleaved ? 2 * pair + 1 : pair + HALF]);
        squares += a[i] * a[i] + c[i] * c[i];
    }
    const float norm = weight != nullptr ? rsqrtf(warp_sum(squares) / HS + eps) : 1.0f;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int pair = lane_id() + i * WARP_SIZE;
        if (pair >= HALF) continue;
        const int first = interleaved ? 2 * pair : pair, second = interleaved ? 2 * pair + 1 : pair + HALF;
        const float low = a[i] * norm * (weight != nullptr ? to_float(weight[first]) : 1.0f);
        const float high = c[i] * norm * (weight != nullptr ? to_float(weight[second]) : 1.0f);
        store(first, scale * (low * cosines[pair] - high * sines[pair]));
        store(second, scale * (high * cosines[pair] + low * sines[pair]));
    }
}

// What a lane, and later a warp, has found of its keys, for each query of the group; maxima are of base 2.
struct Found
{
    float m[GROUP], l[GROUP], o[GROUP][VEC];

    __device__ __forceinline__ void add(const float (&q)[GROUP][VEC], uint4 key, uint4 value, bool seen)
    {
        const Vec16<Real> k = vec_from_bits<Real>(key), v = vec_from_bits<Real>(value);
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float score = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC; j++) score += q[g][j] * to_float(k[j]);
#pragma unroll
            for (int offset = LANES / 2; offset > 0; offset /= 2) score += __shfl_xor_sync(ALL_LANES, score, offset);
            if (!seen) continue;
            const float largest = fmaxf(m[g], score), shrink = exp2f(m[g] - largest), p = exp2f(score - largest);
            m[g] = largest;
            l[g] = l[g] * shrink + p;
#pragma unroll
            for (int j = 0; j < VEC; j++) o[g][j] = o[g][j] * shrink + p * to_float(v[j]);
        }
    }

    // The lanes of a warp that have the same channels of different keys.
    __device__ __forceinline__ void merge()
    {
#pragma unroll
        for (int g = 0; g < GROUP; g++)
#pragma unroll
            for (int offset = WARP_SIZE / 2; offset >= LANES; offset /= 2) {
                const float other = __shfl_xor_sync(ALL_LANES, m[g], offset), largest = fmaxf(m[g], other);
                const float shrink = m[g] == -INFINITY ? 0.0f : exp2f(m[g] - largest);
                m[g] = largest;
                l[g] *= shrink;
                l[g] += __shfl_xor_sync(ALL_LANES, l[g], offset);
#pragma unroll
                for (int j = 0; j < VEC; j++) {
                    o[g][j] *= shrink;
                    o[g][j] += __shfl_xor_sync(ALL_LANES, o[g][j], offset);
                }
            }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    rope_cached_attention(const Real* qkv, const Real* q_weight, const Real* k_weight, const float* cosines, const float* sines,
                          const int* past, Real* k_cache, Real* v_cache, Real* out, int NH, int NKV, int S, int interleaved,
                          float eps, float scale, int window)
{
    extern __shared__ float4 shared[];
    float* qs = reinterpret_cast<float*>(shared);                // (GROUP, HS)
    float* mine = qs + GROUP * HS;                               // (GROUP, PART): the block's part
    Real* fresh = reinterpret_cast<Real*>(mine + GROUP * PART);  // (2, HS): the new key and value
    float* os = reinterpret_cast<float*>(fresh + 2 * HS);        // (WARPS, GROUP, HS)
    float *ms = os + WARPS * GROUP * HS, *ls = ms + WARPS * GROUP;
    const int lane = lane_id(), warp = warp_id(), kv = blockIdx.y, b = blockIdx.z, rank = SPLITS > 1 ? cluster_rank() : 0;
    const int position = past[b], oldest = max(0, position - window + 1), share = ceil_div(position - oldest, SPLITS);
    const int first = oldest + rank * share, end = min(position, first + share), channel = lane % LANES * VEC;
    const size_t head = (size_t(b) * NKV + kv) * S;

    // The kernel ahead may still write a key, so that none is read here; for few texts the caches' lines come to the L2 meanwhile.
    for (int key = first + int(threadIdx.x) / LANES; SPLITS > 1 && key < end; key += THREADS / LANES) {
        prefetch_line(k_cache + (head + key) * HS + channel);
        prefetch_line(v_cache + (head + key) * HS + channel);
    }
    pdl_wait();
    pdl_launch_dependents();

    uint4 k[LOADS], v[LOADS];
    auto request = [&](int from) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int key = from + (i * WARPS + warp) * AT_ONCE + lane / LANES;
            k[i] = v[i] = make_uint4(0, 0, 0, 0);
            if (key >= end) continue;
            k[i] = __ldcg(reinterpret_cast<const uint4*>(k_cache + (head + key) * HS + channel));
            v[i] = __ldcg(reinterpret_cast<const uint4*>(v_cache + (head + key) * HS + channel));
        }
    };
    request(first);

    const Real* token = qkv + size_t(b) * (NH + 2 * NKV) * HS;
    const float *cosine = cosines + size_t(position) * HALF, *sine = sines + size_t(position) * HALF;
    for (int h = warp; h < GROUP + (rank == 0 ? 2 : 0); h += WARPS) {
        const size_t place = (head + position) * HS;
        if (h < GROUP) {
            turn(token + (kv * GROUP + h) * HS, q_weight, cosine, sine, interleaved, eps, scale * LOG2,
                 [&](int c, float x) { qs[h * HS + c] = x; });
        } else if (h == GROUP) {
            turn(token + (NH + kv) * HS, k_weight, cosine, sine, interleaved, eps, 1.0f,
                 [&](int c, float x) { fresh[c] = k_cache[place + c] = from_float<Real>(x); });
        } else {
            for (int c = lane; c < HS; c += WARP_SIZE) fresh[HS + c] = v_cache[place + c] = token[(NH + NKV + kv) * HS + c];
        }
    }
    __syncthreads();

    float q[GROUP][VEC];
    Found found;
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        found.m[g] = -INFINITY, found.l[g] = 0.0f;
#pragma unroll
        for (int j = 0; j < VEC; j++) q[g][j] = qs[g * HS + channel + j], found.o[g][j] = 0.0f;
    }
    for (int from = first; from < end; from += LOADS * WARPS * AT_ONCE) {
        if (from > first) request(from);
#pragma unroll
        for (int i = 0; i < LOADS; i++) found.add(q, k[i], v[i], from + (i * WARPS + warp) * AT_ONCE + lane / LANES < end);
    }
    if (rank == 0 && warp == 0)
        found.add(q, *reinterpret_cast<const uint4*>(fresh + channel), *reinterpret_cast<const uint4*>(fresh + HS + channel),
                  lane < LANES);
    found.merge();
    if (lane < LANES)
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            if (lane == 0) ms[warp * GROUP + g] = found.m[g], ls[warp * GROUP + g] = found.l[g];
#pragma unroll
            for (int j = 0; j < VEC; j++) os[(warp * GROUP + g) * HS + channel + j] = found.o[g][j];
        }
    __syncthreads();

    Real* to = out + (size_t(b) * NH + kv * GROUP) * HS;
    for (int i = threadIdx.x; i < GROUP * HS; i += THREADS) {
        const int g = i / HS, hs = i % HS;
        float m = -INFINITY, sum = 0.0f, total = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) m = fmaxf(m, ms[w * GROUP + g]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float own = ms[w * GROUP + g], weight = own == -INFINITY ? 0.0f : exp2f(own - m);
            sum += weight * os[(w * GROUP + g) * HS + hs];
            total += weight * ls[w * GROUP + g];
        }
        if (SPLITS == 1) {
            to[i] = from_float<Real>(sum / total);
        } else {
            mine[g * PART + hs] = sum;
            if (hs == 0) mine[g * PART + HS] = m, mine[g * PART + HS + 1] = total;
        }
    }
    if (SPLITS == 1) return;

    cluster_sync();
    for (int i = rank * THREADS + threadIdx.x; i < GROUP * HS / 4; i += SPLITS * THREADS) {
        const int g = i / (HS / 4), hs = i % (HS / 4) * 4;
        float4 part[SPLITS], of[SPLITS];
#pragma unroll
        for (int s = 0; s < SPLITS; s++) {
            part[s] = cluster_load(cluster_address(mine + g * PART + hs, s));
            of[s] = cluster_load(cluster_address(mine + g * PART + HS, s));
        }
        float m = -INFINITY, total = 0.0f;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int s = 0; s < SPLITS; s++) m = fmaxf(m, of[s].x);
#pragma unroll
        for (int s = 0; s < SPLITS; s++) {
            const float weight = of[s].x == -INFINITY ? 0.0f : exp2f(of[s].x - m);
            total += weight * of[s].y;
            sum.x += weight * part[s].x, sum.y += weight * part[s].y, sum.z += weight * part[s].z, sum.w += weight * part[s].w;
        }
        Vec<Real, 4> result;
        result[0] = from_float<Real>(sum.x / total), result[1] = from_float<Real>(sum.y / total);
        result[2] = from_float<Real>(sum.z / total), result[3] = from_float<Real>(sum.w / total);
        *reinterpret_cast<Vec<Real, 4>*>(to + g * HS + hs) = result;
    }
    cluster_sync();  // a block's shared memory must stay valid until the others have read it
}
