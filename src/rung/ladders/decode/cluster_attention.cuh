// Attention of a head by its cluster: each block has a part of the keys.
#pragma once
#include "cluster_consumer.cuh"

namespace decode::clusters {

// The warp's share of the block's keys.
__device__ __forceinline__ void ClusterConsumer::attend(const float* qkv, float scale)
{
    constexpr int LANES = HS / VEC, AT_ONCE = WARP_SIZE / LANES;  // lanes per key, keys per access
    ExchangeBuffers& s = step.s;
    const int lane = lane_id(), warp = warp_id(), own = lane / LANES, piece = lane % LANES, count = step.keys();
    float q[VEC], sum[VEC] = {}, top = -INFINITY, l = 0.0f;
    const auto over_key = [](float x) {
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
        return x;
    };
#pragma unroll
    for (int j = 0; j < VEC; j++) q[j] = qkv[piece * VEC + j] * scale;
    if (warp == STEP_WARPS - 1 && step.rank == CLUSTER - 1) {  // the new key and value, as cached
        float dot = 0.0f;
#pragma unroll
        for (int j = 0; j < VEC; j++) dot += to_float(from_float<Real>(qkv[HS + piece * VEC + j])) * q[j];
        top = over_key(dot);
        if (own == 0) {
            l = 1.0f;
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[j] = to_float(from_float<Real>(qkv[2 * HS + piece * VEC + j]));
        }
    }
    if (count > 0) {
        await(AT_KEYS);
        step.watch.start(KEYS);
        const Address keys = step.weights + BEGIN[AT_KEYS] + piece * 16, values = keys + MOST_KEYS * KEY_BYTES;
#pragma unroll 1
        for (int begin = warp * AT_ONCE; begin < count; begin += STEP_WARPS * AT_ONCE * KEY_LOADS) {
            float score[KEY_LOADS], most = top;
#pragma unroll
            for (int i = 0; i < KEY_LOADS; i++) {
                const int key = begin + own + i * (STEP_WARPS * AT_ONCE);
                const uint4 bits = at<uint4>(keys + min(key, count - 1) * KEY_BYTES);
                float dot = 0.0f;
#pragma unroll
                for (int j = 0; j < VEC; j++) dot += weight_at(bits, j, (const Real*)nullptr) * q[j];
                dot = over_key(dot);
                score[i] = key < count ? dot : -INFINITY;
                most = fmaxf(most, score[i]);
            }
#pragma unroll
            for (int offset = WARP_SIZE / 2; offset >= LANES; offset /= 2)
                most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, offset));
            const float shrink = exp2f(top - most);
            top = most, l *= shrink;
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[j] *= shrink;
#pragma unroll
            for (int i = 0; i < KEY_LOADS; i++) {
                const int key = min(begin + own + i * (STEP_WARPS * AT_ONCE), count - 1);
                const uint4 bits = at<uint4>(values + key * KEY_BYTES);
                const float p = exp2f(score[i] - top);
                l += p;
#pragma unroll
                for (int j = 0; j < VEC; j++) sum[j] += p * weight_at(bits, j, (const Real*)nullptr);
            }
        }
        release(s.empty + AT_KEYS);
    }
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset >= LANES; offset /= 2) {
        l += __shfl_xor_sync(ALL_LANES, l, offset);
#pragma unroll
        for (int j = 0; j < VEC; j++) sum[j] += __shfl_xor_sync(ALL_LANES, sum[j], offset);
    }
    if (lane == 0) s.tops[warp] = top, s.sums[warp] = l;
    if (own == 0)
#pragma unroll
        for (int j = 0; j < VEC; j++) s.outputs[warp][piece * VEC + j] = sum[j];
}

// Sends the block's part of a head's outputs to all blocks of the cluster: four elements per thread, or the part's weight.
__device__ __forceinline__ void ClusterConsumer::send_outputs_to_cluster(int k)
{
    constexpr int EACH = HS / 4 + 1;
    static_assert(EACH * CLUSTER <= THREADS, "one access a thread");
    ExchangeBuffers& s = step.s;
    const int peer = threadIdx.x / EACH, j = threadIdx.x % EACH;
    if (peer >= CLUSTER) return;
    float most = s.tops[0];
#pragma unroll
    for (int w = 1; w < STEP_WARPS; w++) most = fmaxf(most, s.tops[w]);
    float4 y = {};
    float l = 0.0f;
#pragma unroll
    for (int w = 0; w < STEP_WARPS; w++) {
        const float weight = s.tops[w] == -INFINITY ? 0.0f : exp2f(s.tops[w] - most);
        if (j < HS / 4) {
            const float4 own = *reinterpret_cast<const float4*>(s.outputs[w] + j * 4);
            y.x += weight * own.x, y.y += weight * own.y, y.z += weight * own.z, y.w += weight * own.w;
        } else {
            l += weight * s.sums[w];
        }
    }
    st_async4(s.heads[k][step.rank] + j * 4, s.heads_full + k, peer, j < HS / 4 ? y : make_float4(most, l, 0.0f, 0.0f));
}

__device__ __forceinline__ void ClusterConsumer::merge_heads(int k)
{
    ExchangeBuffers& s = step.s;
    if (int(threadIdx.x) >= HS / 2) return;
    float most = -INFINITY, all = 0.0f;
    float2 y = {};
#pragma unroll
    for (int b = 0; b < CLUSTER; b++) most = fmaxf(most, s.heads[k][b][HS]);
#pragma unroll
    for (int b = 0; b < CLUSTER; b++) {
        const float weight = exp2f(s.heads[k][b][HS] - most);  // 0 for a block without keys
        const float2 own = *reinterpret_cast<const float2*>(s.heads[k][b] + 2 * threadIdx.x);
        all += weight * s.heads[k][b][HS + 1], y.x += weight * own.x, y.y += weight * own.y;
    }
    const float share = __fdividef(1.0f, all);
    set_pair(s.head_vector, PROJ_COLUMNS, threadIdx.x, y.x * share, y.y * share);
}

}  // namespace decode::clusters
