// Kernels before and after the tiled product: the targets' logits, and the merge of the statistics of the vocabulary's slices.
#pragma once
#include "statistics.cuh"

// One warp per token.
__device__ __forceinline__ void find_target_logits(const Real* x, const Real* weight, const int* targets, float* own, int M,
                                                   int C)
{
    const int token = blockIdx.x * (blockDim.x / WARP_SIZE) + warp_id();
    if (token >= M) return;
    const float logit = dot_of_warp(x + size_t(token) * C, weight + size_t(targets[token]) * C, C);
    if (lane_id() == 0) own[token] = logit;
}

// One thread per token; slices are merged in their order, so that the result does not depend on which ended first.
__device__ __forceinline__ void merge_all_slices(const float4* parts, const float* own, float* logprob, float* entropy, int* rank,
                                                 int M, int slices)
{
    const int token = blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= M) return;
    Statistics all;
    // perhaps never one turn: SLICES may be several at every shape
    for (int slice = 0; slice < slices; slice++) {
        const float4 part = parts[size_t(slice) * M + token];
        Statistics one;
        one.m = part.x, one.l = part.y, one.s = part.z, one.above = __float_as_int(part.w);
        all.merge(one);
    }
    store(all, own[token], token, logprob, entropy, rank);
}

__device__ __forceinline__ void store_part(float4* parts, const Statistics& s, int slice, int token, int M)
{
    parts[size_t(slice) * M + token] = make_float4(s.m, s.l, s.s, __int_as_float(s.above));
}
