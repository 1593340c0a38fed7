// Data from block to block: within a cluster through distributed shared memory, between clusters as packets in L2.
#pragma once
#include "cluster_layout.cuh"
#include "exchange_epochs.cuh"

namespace decode::clusters {

// ---- within a cluster

__device__ __forceinline__ void st_async4(const void* to, const uint64_t* barrier, int peer, float4 v)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     cluster_address(to, peer)),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(cluster_address(barrier, peer))
                 : "memory");
}
__device__ __forceinline__ void st_async2(const void* to, const uint64_t* barrier, int peer, float2 v)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
                     cluster_address(to, peer)),
                 "f"(v.x), "f"(v.y), "r"(cluster_address(barrier, peer))
                 : "memory");
}
__device__ __forceinline__ void st_async1(const void* to, const uint64_t* barrier, int peer, uint32_t v)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(cluster_address(to, peer)), "r"(v),
        "r"(cluster_address(barrier, peer))
        : "memory");
}

// Waits for the data of the cluster's blocks, which arrive in this block's own shared memory. The scope of the wait is the block:
// a wait of cluster scope invalidates the L1 cache each time. One thread then rearms the barrier for the exchange after next.
__device__ __forceinline__ void await_cluster(uint64_t* barrier, unsigned parity, unsigned next_bytes)
{
    byte_barrier_wait(barrier, parity);
    if (threadIdx.x == 0) byte_barrier_expect(barrier, next_bytes);
}

__device__ __forceinline__ void sync_computing() { sync_first<THREADS>(); }

// ---- partial sums through L2 ------------------------------------------------------------------------------------

// Four floats and the layer's epoch in 16 bytes: two of the epoch's low eight bits in the two low bits of each float.
__device__ __forceinline__ uint32_t with_epoch_bits(float x, uint32_t epoch, int i)
{
    return (__float_as_uint(x) & ~3u) | (epoch >> (2 * i) & 3u);
}
__device__ __forceinline__ float without_epoch_bits(uint32_t word) { return __uint_as_float(word & ~3u); }
__device__ __forceinline__ uint32_t epoch_bits(const Packet& p)
{
    return (p.word[0] & 3u) | (p.word[1] & 3u) << 2 | (p.word[2] & 3u) << 4 | (p.epoch & 3u) << 6;
}

// Indexed by the epoch's parity, then (four outputs, part). Attention's parts are heads, the MLP's are clusters.
template <int PARTS_>
struct PartSums
{
    static constexpr int STRIDE = ceil_div(PARTS_, 16) * 16, SIZE = 2 * (C / 4) * STRIDE;
    Packet* packets;

    __device__ __forceinline__ Packet* at(uint32_t epoch, int column, int part) const
    {
        return packets + (int(epoch & 1) * (C / 4) + column) * STRIDE + part;
    }
};
static_assert(PartSums<NH>::SIZE + PartSums<CLUSTERS>::SIZE + BLOCKS == PACKETS, "as the header has it");

// Sends eight rows' sums, which lanes 0, 4, 8 ... hold, to the blocks that add them up.
template <int PARTS_>
__device__ __forceinline__ void send_sums(const PartSums<PARTS_>& to, uint32_t epoch, int column, int part, float sum)
{
    const int lane = lane_id();
    float v[4];
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = __shfl_sync(ALL_LANES, sum, (lane & 16) + 4 * k);
    if (lane % 16 == 0)
        send(to.at(epoch, column + lane / 16, part), with_epoch_bits(v[0], epoch, 0), with_epoch_bits(v[1], epoch, 1),
             with_epoch_bits(v[2], epoch, 2), with_epoch_bits(v[3], epoch, 3));
}

// Four outputs' sums over all parts, by half a warp: output lane % 16 / 4 in each lane.
template <int PARTS_>
__device__ __forceinline__ float add_parts(const PartSums<PARTS_>& from, uint32_t epoch, int column)
{
    const int lane = lane_id(), own = lane % 16;
    float v[4] = {};
#pragma unroll
    for (int first = 0; first < PARTS_; first += 16) {
        const Packet* at = from.at(epoch, column, first + own);
        Packet p = try_load_if(first + own < PARTS_, at, epoch >> 6 & 3u);
        if (first + own < PARTS_) {
            // perhaps never one turn: what is not there yet takes a while
            while (epoch_bits(p) != (epoch & 255u)) p = try_load(at);
            v[0] += without_epoch_bits(p.word[0]), v[1] += without_epoch_bits(p.word[1]), v[2] += without_epoch_bits(p.word[2]),
                v[3] += without_epoch_bits(p.epoch);
        }
    }
    __syncwarp();
    const bool upper = lane & 8, odd = lane & 4;
    const float a = (upper ? v[2] : v[0]) + __shfl_xor_sync(ALL_LANES, upper ? v[0] : v[2], 8);
    const float b = (upper ? v[3] : v[1]) + __shfl_xor_sync(ALL_LANES, upper ? v[1] : v[3], 8);
    float sum = (odd ? b : a) + __shfl_xor_sync(ALL_LANES, odd ? a : b, 4);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    return sum + __shfl_xor_sync(ALL_LANES, sum, 1);
}

}  // namespace decode::clusters
