// The steps of sampling a token, for one block that holds a row of logits in shared memory.
#pragma once
#include "rung.cuh"

namespace sample_steps {

constexpr int V = DIM_V, WARPS = BLOCK / 32;

// Philox 4x32 with ten rounds, keyed by the seed, at (step, 0, sequence, 0): a number in [0, 1) of 24 bits. A sequence's step is
// the batch's plus the seed's fourth word.
__device__ __forceinline__ float uniform(const int* seed, int step)
{
    uint32_t k0 = uint32_t(seed[0]), k1 = uint32_t(seed[1]);
    uint32_t a = uint32_t(step) + uint32_t(seed[3]), b = 0, c = uint32_t(seed[2]), d = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t x = uint64_t(0xD2511F53u) * a, y = uint64_t(0xCD9E8D57u) * c;
        a = uint32_t(y >> 32) ^ b ^ k0;
        b = uint32_t(y);
        c = uint32_t(x >> 32) ^ d ^ k1;
        d = uint32_t(x);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return float(a >> 8) * 0x1p-24f;
}

struct Settings
{
    float temperature, top_p, min_p, repetition, presence, frequency;
    int top_k;

    __device__ __forceinline__ explicit Settings(const float* s)
        : temperature(s[0]), top_p(s[2]), min_p(s[3]), repetition(s[4]), presence(s[5]), frequency(s[6]), top_k(int(s[1]))
    {
    }

    __device__ __forceinline__ bool penalised() const { return repetition != 1.0f || presence != 0.0f || frequency != 0.0f; }

    __device__ __forceinline__ float penalise(float logit, int mark) const
    {
        if (mark & 1) logit = logit > 0.0f ? logit / repetition : logit * repetition;
        const int count = mark >> 1;
        return count ? logit - presence - frequency * float(count) : logit;
    }
};

// Maps floats to integers of the same order.
__device__ __forceinline__ uint32_t ordered(float x)
{
    const uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The largest float up to `top` for which `holds` is true; it must be true for all smaller ones too. At most 32 bisection steps.
template <class Holds>
__device__ __forceinline__ float bisect(float top, Holds holds)
{
    uint32_t low = ordered(-FLT_MAX), high = ordered(top);
    // perhaps never skipped: only where top is -FLT_MAX; perhaps never one turn: only just above it
    while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        if (holds(from_ordered(middle)))
            low = middle;
        else
            high = middle - 1;
    }
    return from_ordered(low);
}

__device__ __forceinline__ int block_count(int count)
{
    __shared__ int partial[WARPS];
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) count += __shfl_xor_sync(ALL_LANES, count, offset);
    __syncthreads();
    if (lane_id() == 0) partial[warp_id()] = count;
    __syncthreads();
    int sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += partial[w];
    return sum;
}

__device__ __forceinline__ int block_least(int x)
{
    __shared__ int partial[WARPS];
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) x = min(x, __shfl_xor_sync(ALL_LANES, x, offset));
    __syncthreads();
    if (lane_id() == 0) partial[warp_id()] = x;
    __syncthreads();
    int least = partial[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++) least = min(least, partial[w]);
    return least;
}

// A block's values, in the order of the vocabulary: first the logits, then the unnormalised probabilities. A warp has `share`
// consecutive ones of the first `size`, and each lane every 32nd of them, so no other thread's value is read without a barrier.
struct Numbers
{
    float* z;
    int size;

    __device__ __forceinline__ int share() const { return (size + BLOCK - 1) / BLOCK * WARP_SIZE; }

    template <class Do>
    __device__ __forceinline__ void each(Do what) const
    {
        const int begin = warp_id() * share(), end = min(size, begin + share());
#pragma unroll 4
        for (int i = begin + lane_id(); i < end; i += WARP_SIZE) what(i);
    }

    // Returns the maximum of the thread's own.
    __device__ __forceinline__ float load(const float* logits, const int* marks, const Settings& s) const
    {
        float largest = -INFINITY;
        each([&](int i) {
            const float logit = __ldcg(logits + i);
            z[i] = marks ? s.penalise(logit, __ldcg(marks + i)) : logit;
            largest = fmaxf(largest, z[i]);
        });
        return largest;
    }

    __device__ __forceinline__ int first_equal(float value) const
    {
        int first = V;
        each([&](int i) { first = z[i] == value ? min(first, i) : first; });
        return block_least(first);
    }

    __device__ __forceinline__ int count_from(float edge) const
    {
        int count = 0;
        each([&](int i) { count += z[i] >= edge; });
        return block_count(count);
    }

    __device__ __forceinline__ float sum_from(float edge) const
    {
        float sum = 0.0f;
        each([&](int i) { sum += z[i] >= edge ? z[i] : 0.0f; });
        return block_sum(sum);
    }

    __device__ __forceinline__ void drop_below(float edge, float to) const
    {
        each([&](int i) {
            if (z[i] < edge) z[i] = to;
        });
    }

    // Returns the sum of the thread's own.
    __device__ __forceinline__ float exponentials(float largest, float temperature) const
    {
        const float unit = 1.0f / temperature;
        float sum = 0.0f;
        each([&](int i) {
            z[i] = expf((z[i] - largest) * unit);
            sum += z[i];
        });
        return sum;
    }

    // Keeps values above the threshold; of those equal to it (usually one) the first ones, as many as needed to reach `wanted`.
    __device__ __forceinline__ void keep_nucleus(float edge, float wanted) const
    {
        float above = 0.0f;
        int on_edge = 0;
        each([&](int i) {
            above += z[i] > edge ? z[i] : 0.0f;
            on_edge += z[i] == edge;
        });
        above = block_sum(above);
        on_edge = block_count(on_edge);
        const int kept = max(1, int(ceilf((wanted - above) / edge)));
        drop_below(edge, 0.0f);
        if (kept >= on_edge) return;
        int low = 0, high = size - 1;  // the last position at which a value equal to the threshold is kept
        while (low < high) {
            const int middle = (low + high) / 2;
            int before = 0;
            each([&](int i) { before += z[i] == edge && i <= middle; });
            if (block_count(before) >= kept)
                high = middle;
            else
                low = middle + 1;
        }
        each([&](int i) {
            if (z[i] == edge && i > low) z[i] = 0.0f;
        });
    }

    // The position where the cumulative sum first exceeds u times the total; every thread gets it.
    __device__ __forceinline__ int draw(float u) const
    {
        __shared__ double sums[WARPS];
        __shared__ int found;
        double own = 0.0;
        each([&](int i) { own += double(z[i]); });
        for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) own += __shfl_xor_sync(ALL_LANES, own, offset);
        if (lane_id() == 0) sums[warp_id()] = own;
        __syncthreads();
        double all = 0.0, before = 0.0;
        int last = 0;  // the last warp with any mass, in case rounding moves u times the total past the end
        for (int w = 0; w < WARPS; w++) {
            if (w < warp_id()) before += sums[w];
            if (sums[w] > 0.0) last = w;
            all += sums[w];
        }
        const double target = double(u) * all;
        const bool mine = own > 0.0 && before <= target && (target < before + own || warp_id() == last);
        if (mine) {
            const int begin = warp_id() * share(), end = min(size, begin + share());
            int latest = begin, token = -1;
            for (int row = begin; row < end && token < 0; row += WARP_SIZE) {
                const int i = row + lane_id();
                const float value = i < end ? z[i] : 0.0f;
                double upto = double(value);
                for (int offset = 1; offset < WARP_SIZE; offset *= 2) {
                    const double left = __shfl_up_sync(ALL_LANES, upto, offset);
                    if (lane_id() >= offset) upto += left;
                }
                const unsigned passed = __ballot_sync(ALL_LANES, value > 0.0f && before + upto > target);
                const unsigned any = __ballot_sync(ALL_LANES, value > 0.0f);
                if (passed) token = row + __ffs(int(passed)) - 1;
                if (any) latest = row + 31 - __clz(int(any));
                before += __shfl_sync(ALL_LANES, upto, WARP_SIZE - 1);
            }
            if (lane_id() == 0) found = token < 0 ? latest : token;
        }
        __syncthreads();
        return found;
    }
};

}  // namespace sample_steps
