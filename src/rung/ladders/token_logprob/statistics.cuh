// The statistics of a pass over a token's logits: enough for the target's probability, its rank and the entropy.
#pragma once
#include "rung.cuh"

struct Statistics
{
    float m = -INFINITY;  // the largest logit so far
    float l = 0.0f;       // sum of exp(logit - m)
    float s = 0.0f;       // sum of exp(logit - m) * (logit - m)
    int above = 0;        // logits larger than the target's

    __device__ __forceinline__ void add(float logit, bool larger)
    {
        raise(logit);
        const float e = __expf(logit - m);
        l += e;
        s += e * (logit - m);
        above += larger;
    }

    __device__ __forceinline__ void merge(const Statistics& other)
    {
        if (other.l == 0.0f) return;  // perhaps never true: parts may all have columns
        raise(other.m);
        const float shift = other.m - m, factor = __expf(shift);
        l += other.l * factor;
        s += (other.s + other.l * shift) * factor;
        above += other.above;
    }

    __device__ __forceinline__ float logsumexp() const { return m + logf(l); }
    // -sum p log p, with p = exp(logit - m) / l
    __device__ __forceinline__ float entropy() const { return logf(l) - s / l; }

    // Rescales to a maximum of at least `to`.
    __device__ __forceinline__ void raise(float to)
    {
        if (!(to > m)) return;
        if (l > 0.0f) {
            const float shift = m - to, factor = __expf(shift);
            s = (s + l * shift) * factor;
            l *= factor;
        }
        m = to;
    }
};

__device__ __forceinline__ Statistics shuffled(const Statistics& mine, int offset)
{
    Statistics other;
    other.m = __shfl_xor_sync(ALL_LANES, mine.m, offset);
    other.l = __shfl_xor_sync(ALL_LANES, mine.l, offset);
    other.s = __shfl_xor_sync(ALL_LANES, mine.s, offset);
    other.above = __shfl_xor_sync(ALL_LANES, mine.above, offset);
    return other;
}

// Every lane gets the statistics of all; `width` neighbouring lanes take part.
__device__ __forceinline__ Statistics merged(Statistics mine, int width = WARP_SIZE)
{
#pragma unroll
    for (int offset = 1; offset < width; offset *= 2) mine.merge(shuffled(mine, offset));
    return mine;
}

__device__ __forceinline__ float dot_of_warp(const Real* a, const Real* b, int C)
{
    float sum = 0.0f;
    for (int c = lane_id(); c < C; c += WARP_SIZE) sum += to_float(a[c]) * to_float(b[c]);
    return warp_sum(sum);
}

__device__ __forceinline__ void store(const Statistics& all, float target_logit, int token, float* logprob, float* entropy,
                                      int* rank)
{
    logprob[token] = target_logit - all.logsumexp();
    entropy[token] = all.entropy();
    rank[token] = all.above;
}
