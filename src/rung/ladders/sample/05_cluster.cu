/*---
idea   = "A cluster of blocks keeps a row in its registers; the thresholds of top-k and top-p are found ten bits per round by histograms, and probabilities are integers, whose sums do not depend on the order."
expect = "For gpt2 at B = 1 a block has 6,283 logits, 7 per thread, and never reads them again: temperature alone takes 8 us in place of 02's passes, top-p 17 us in total whatever the nucleus's width, top-k 16 us, both together 25 us (05.md). At B = 64 a block fills a multiprocessor: 16 rows at a time, four waves, 60 to 80 us."
found  = "The default now. gpt2 in bf16 on an H200, one sequence: 5,243 tokens/s at temperature 0.8 with top-p 0.95 instead of rung 2's 3,752, 4,997 with top-k 50 as well (4,316), against 5,654 greedy. Top-p costs 14 us per token more than greedy decoding, where 17 us were expected in total (05.md)."
provenance = "ours"
rewrite = "A row lies in the registers of a cluster, so that nothing of the loops over memory remains."
dtypes = ["f32"]
dims   = ["V"]
needs  = ["sm >= 90", "ceil_div(V, CLUSTER * BLOCK) * max(BLOCK, 512) <= 8192"]
[tune]
BLOCK = [1024, 512]
CLUSTER = [8, 4]
[[launch]]
kernel  = "sample"
grid    = ["CLUSTER", "B"]
block   = "BLOCK"
cluster = "CLUSTER"
pdl     = true
[model]
serves = { sample = 1 }
---*/
#include "cluster.cuh"
#include "sample.cuh"

using namespace sample_steps;
using cluster::warp_total, cluster::warp_upto;

typedef unsigned long long Mass;  // of probability, or of tokens counted

constexpr int EACH = ceil_div(V, CLUSTER* BLOCK), ALL_WARPS = CLUSTER * WARPS;
constexpr int BITS = 10, BINS = 1 << BITS, CHUNKS = BINS / WARP_SIZE;
constexpr uint32_t ONE = 0x3f800000;  // 1.0f

__host__ __device__ constexpr int width(int n) { return n ? 1 + width(n / 2) : 0; }
// A mass has two limbs of LIMB bits: the limbs of all of a block's tokens add up within 32 bits.
constexpr int LIMB = 32 - width(EACH * BLOCK) < 24 ? 32 - width(EACH * BLOCK) : 24;

// Double buffers: one half is written while a slower block still reads the other.
struct Shared
{
    alignas(16) float maxima[ALL_WARPS];
    Mass sums[2][ALL_WARPS];
    Mass chunks[2][CLUSTER][CHUNKS];
    uint32_t low[2][BINS], high[2][BINS];
    Mass wanted, before, on;
    uint32_t bin;
    float bound;
};

// The key at which the mass reaches the target; the mass on that key, and how much of it is needed.
struct Edge
{
    uint32_t key;
    Mass on, wanted;
};

__device__ __forceinline__ Mass mass(float p) { return p > 0.0f ? Mass(p * float(1ull << (2 * LIMB))) : 0; }

// A warp's part of the vocabulary: EACH rows of 32 tokens, first logits, then unnormalised probabilities.
struct Part
{
    Shared& shared;
    const int rank = cluster_rank(), warp = rank * WARPS + warp_id();
    int round = 0;
    float z[EACH];

    __device__ __forceinline__ explicit Part(Shared& s) : shared(s)
    {
        clear(0);
        clear(1);
    }

    __device__ __forceinline__ void clear(int half)
    {
#pragma unroll 1
        for (int i = threadIdx.x; i < BINS; i += BLOCK) shared.low[half][i] = shared.high[half][i] = 0;
    }

    __device__ __forceinline__ int token(int j) const { return (warp * EACH + j) * WARP_SIZE + lane_id(); }

    // Returns the maximum over the cluster.
    __device__ __forceinline__ float load(const float* logits, const int* marks, const Settings& s)
    {
        float largest = -INFINITY;
#pragma unroll
        for (int j = 0; j < EACH; j++) z[j] = token(j) < V ? __ldcg(logits + token(j)) : -INFINITY;
        if (s.penalised()) {
#pragma unroll
            for (int j = 0; j < EACH; j++)
                if (token(j) < V) z[j] = s.penalise(z[j], __ldcg(marks + token(j)));
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            z[j] += 0.0f;  // both zeros get the same key
            largest = fmaxf(largest, z[j]);
        }
        cluster::tell<CLUSTER>(&shared.maxima[warp], warp_max(largest));
        cluster_sync();
        largest = -INFINITY;
        for (int w = lane_id(); w < ALL_WARPS; w += WARP_SIZE) largest = fmaxf(largest, shared.maxima[w]);
        return warp_max(largest);
    }

    // The first token with the largest logit in its warp; -1 in the others.
    __device__ __forceinline__ int first(float largest) const
    {
        int first = -1;
        for (int row = 0; row < ALL_WARPS && first < 0; row += WARP_SIZE) {
            const int w = row + lane_id();
            const unsigned equal = __ballot_sync(ALL_LANES, w < ALL_WARPS && shared.maxima[w] == largest);
            if (equal) first = row + __ffs(int(equal)) - 1;
        }
        if (first != warp) return -1;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const unsigned equal = __ballot_sync(ALL_LANES, z[j] == largest);
            if (equal) return (warp * EACH + j) * WARP_SIZE + __ffs(int(equal)) - 1;
        }
        return 0;
    }

    // The warps' maxima are a sample of the largest logits: k of these lie on or above the k-th of those.
    __device__ __forceinline__ float bound(int k)
    {
        const int t = int(threadIdx.x);
        if (t < ALL_WARPS) {
            const float own = shared.maxima[t];
            int before = 0;
#pragma unroll 4
            for (int w = 0; w < ALL_WARPS; w += 4) {
                const float4 m = *reinterpret_cast<const float4*>(&shared.maxima[w]);
                before += (m.x > own || (m.x == own && w < t)) + (m.y > own || (m.y == own && w + 1 < t)) +
                          (m.z > own || (m.z == own && w + 2 < t)) + (m.w > own || (m.w == own && w + 3 < t));
            }
            if (before == k - 1) shared.bound = own;
        }
        __syncthreads();
        return shared.bound;
    }

    // Keys of this many bits, the smallest first; `wanted` is called with the total mass.
    template <class Key, class Weight, class Wanted>
    __device__ __forceinline__ Edge select(int bits, Key key, Weight weight, Wanted wanted)
    {
        Edge edge = {0, 0, 0};
        bool begun = false;
        do {
            const int half = round++ % 2, shift = max(bits - BITS, 0);
            uint32_t *low = shared.low[half], *high = shared.high[half];
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const uint32_t bin = (key(z[j]) - edge.key) >> shift;
                const Mass w = weight(z[j]);
                if (w > 0 && bin < BINS) {
                    atomicAdd(low + bin, uint32_t(w & ((1u << LIMB) - 1)));
                    if (w >> LIMB) atomicAdd(high + bin, uint32_t(w >> LIMB));
                }
            }
            __syncthreads();
#pragma unroll 1
            for (int c = warp_id(); c < CHUNKS; c += WARPS) {
                const int bin = c * WARP_SIZE + lane_id();
                cluster::tell<CLUSTER>(&shared.chunks[half][rank][c], warp_total(low[bin] + (Mass(high[bin]) << LIMB)));
            }
            cluster_sync();
            clear(1 - half);
            if (warp_id() == 0) {
                Mass chunk = 0, on = 0;
                for (int r = 0; r < CLUSTER; r++) chunk += shared.chunks[half][r][lane_id()];
                Mass upto = warp_upto(chunk);
                if (!begun) edge.wanted = wanted(__shfl_sync(ALL_LANES, upto, WARP_SIZE - 1));
                const int c = max(__ffs(int(__ballot_sync(ALL_LANES, upto >= edge.wanted))) - 1, 0);
                const Mass before = __shfl_sync(ALL_LANES, upto - chunk, c);
                const int bin = c * WARP_SIZE + lane_id();
#pragma unroll
                for (int r = 0; r < CLUSTER; r++) on += *cluster::of(low + bin, r) + (Mass(*cluster::of(high + bin, r)) << LIMB);
                upto = before + warp_upto(on);
                const unsigned reached = __ballot_sync(ALL_LANES, upto >= edge.wanted);
                if (lane_id() == max(__ffs(int(reached)) - 1, 0)) {
                    shared.bin = uint32_t(bin);
                    shared.on = on;
                    shared.wanted = edge.wanted - (upto - on);
                }
            }
            __syncthreads();
            edge = {edge.key + (shared.bin << shift), shared.on, shared.wanted};
            begun = true;
            bits = shift;
        } while (bits > 0);
        return edge;
    }

    __device__ __forceinline__ void keep_largest(int k, float largest)
    {
        const uint32_t top = ordered(largest);
        const uint32_t range = k <= ALL_WARPS ? top - ordered(bound(k)) : UINT_MAX;
        const Edge edge = select(
            range ? 32 - __clz(int(range)) : 0, [&](float x) { return top - ordered(x); },
            [&](float x) { return Mass(top - ordered(x) <= range); }, [&](Mass) { return Mass(k); });
        const float least = from_ordered(top - edge.key);
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (z[j] < least) z[j] = -INFINITY;
    }

    // Keeps tokens above the threshold; of those equal to it (usually one) the first ones, as many as needed.
    __device__ __forceinline__ void keep_nucleus(float top_p)
    {
        const Edge edge = select(
            32 - __clz(int(ONE)), [&](float p) { return ONE - __float_as_uint(p); }, [&](float p) { return mass(p); },
            [&](Mass all) { return Mass(ceil(double(top_p) * double(all))); });
        const float least = __uint_as_float(ONE - edge.key);
        const Mass one = mass(least);
        if (edge.wanted + one <= edge.on) {
            int own = 0;
#pragma unroll
            for (int j = 0; j < EACH; j++) own += __popc(__ballot_sync(ALL_LANES, z[j] == least));
            Mass all;
            int at = int(mass_before(Mass(own), 0, all));
            const int kept = int((edge.wanted + one - 1) / one);
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const unsigned equal = __ballot_sync(ALL_LANES, z[j] == least);
                if (z[j] == least && at + __popc(equal & ((1u << lane_id()) - 1)) >= kept) z[j] = 0.0f;
                at += __popc(equal);
            }
        }
        drop_below(least);
    }

    __device__ __forceinline__ void exponentials(float largest, float temperature)
    {
        const float unit = 1.0f / temperature;
#pragma unroll
        for (int j = 0; j < EACH; j++) z[j] = expf((z[j] - largest) * unit);
    }

    __device__ __forceinline__ void drop_below(float least)
    {
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (z[j] < least) z[j] = 0.0f;
    }

    // The mass of the preceding warps, and the total.
    __device__ __forceinline__ Mass mass_before(Mass own, int half, Mass& all) const
    {
        cluster::tell<CLUSTER>(&shared.sums[half][warp], own);
        cluster_sync();
        Mass before = 0;
        all = 0;
        for (int w = lane_id(); w < ALL_WARPS; w += WARP_SIZE) {
            const Mass x = shared.sums[half][w];
            before += w < warp ? x : 0;
            all += x;
        }
        all = warp_total(all);
        return warp_total(before);
    }

    // The position where the cumulative mass first exceeds u times the total, in the warp that holds it; -1 in the others.
    __device__ __forceinline__ int draw(float u) const
    {
        Mass own = 0, all;
#pragma unroll
        for (int j = 0; j < EACH; j++) own += mass(z[j]);
        own = warp_total(own);
        Mass before = mass_before(own, 1, all);
        const Mass n = Mass(u * 0x1p24f), target = n * (all >> 24) + (n * (all & 0xffffff) >> 24);
        // perhaps never true: the cases' logits are numbers
        if (all == 0) return warp == 0 ? 0 : -1;  // NaN logits
        if (target < before || target >= before + own) return -1;
        Mass here = 0;
        int row = -1;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const Mass all_here = warp_total(mass(z[j]));
            if (row < 0 && target < before + all_here) row = j, here = mass(z[j]);
            if (row < 0) before += all_here;
        }
        const unsigned passed = __ballot_sync(ALL_LANES, before + warp_upto(here) > target);
        return (warp * EACH + row) * WARP_SIZE + __ffs(int(passed)) - 1;
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK)
    sample(const float* logits, int* marks, const float* settings, const int* seeds, const int* steps, int* next)
{
    __shared__ Shared shared;
    const int b = blockIdx.y;
    Part part(shared);
    cluster_sync();  // all blocks have started, so their shared memory may be written
    pdl_wait();
    pdl_launch_dependents();
    const Settings s(settings + 8 * b);
    const float u = uniform(seeds + 4 * b, *steps);
    const float largest = part.load(logits + size_t(b) * V, marks + size_t(b) * V, s);
    int token;
    if (s.temperature == 0.0f) {
        token = part.first(largest);
    } else {
        if (s.top_k > 0 && s.top_k < V) part.keep_largest(s.top_k, largest);
        part.exponentials(largest, s.temperature);
        if (s.top_p < 1.0f) part.keep_nucleus(s.top_p);
        part.drop_below(s.min_p);
        token = part.draw(u);
    }
    if (token >= 0 && lane_id() == 0) {
        next[b] = token;
        int* mark = marks + size_t(b) * V + token;
        *mark = (*mark | 1) + 2;
    }
}
