// Shared by the first three decode rungs: the simplest form of each part, one output per thread.
#pragma once
#include "rung.cuh"

namespace plain {

__device__ __forceinline__ float activate(float x)
{
    if (ACT == 1) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    if (ACT == 2) return fmaxf(x, 0.0f);
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

// Row o of a layer's (OC, K) matrix times K floats.
__device__ __forceinline__ float linear(const float* x, const Real* weight, const Real* bias, int layer, int OC, int o, int K)
{
    const Real* row = weight + (size_t(layer) * OC + o) * K;
    float sum = 0.0f;
    for (int k = 0; k < K; k++) sum += x[k] * to_float(row[k]);
    return sum + (bias ? to_float(bias[layer * OC + o]) : 0.0f);
}

// The layer norm of one row by one warp.
__device__ __forceinline__ void normalise(const float* x, const Real* gain, const Real* shift, float* out, int C, float eps)
{
    float sum = 0.0f, squares = 0.0f;
    for (int c = lane_id(); c < C; c += WARP_SIZE) sum += x[c];
    const float mean = warp_sum(sum) / C;
    for (int c = lane_id(); c < C; c += WARP_SIZE) squares += (x[c] - mean) * (x[c] - mean);
    const float rstd = rsqrtf(warp_sum(squares) / C + eps);
    for (int c = lane_id(); c < C; c += WARP_SIZE) out[c] = (x[c] - mean) * rstd * to_float(gain[c]) + to_float(shift[c]);
}

// The address of key or value t of a head.
__device__ __forceinline__ size_t cached(int layer, int b, int head, int t, int B, int NH, int MAXT, int HS)
{
    return (((size_t(layer) * B + b) * NH + head) * MAXT + t) * HS;
}

// The first index of the maximum, by one warp; every lane gets it.
__device__ __forceinline__ int likeliest(const float* logits, int V)
{
    float best = -INFINITY;
    int index = INT_MAX;
    for (int v = lane_id(); v < V; v += WARP_SIZE)
        if (logits[v] > best) best = logits[v], index = v;
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, best, offset);
        const int at = __shfl_xor_sync(ALL_LANES, index, offset);
        if (other > best || (other == best && at < index)) best = other, index = at;
    }
    return index;
}

}  // namespace plain
