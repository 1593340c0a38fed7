// The warps of a block that compute. Their state for the whole step, and the parts of a phase, which the files that are named
// here define.
#pragma once
#include "cluster_exchange.cuh"
#include "cluster_product.cuh"

namespace decode::clusters {

// Loads for the next phase: the compiler would move an ordinary load to where its value is used.
__device__ __forceinline__ uint32_t load_pair_now(const Real* from)
{
    uint32_t bits;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(bits) : "l"(from));
    return bits;
}
__device__ __forceinline__ float ask_scale(const float* from)
{
    uint32_t bits;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(bits) : "l"(from));
    return __uint_as_float(bits);
}
__device__ __forceinline__ uint32_t load_now(const Real* from)
{
    uint16_t bits;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(bits) : "l"(from));
    return bits;
}
__device__ __forceinline__ float lower(uint32_t bits) { return weight_at(make_uint4(bits, 0, 0, 0), 0, (const Real*)nullptr); }
__device__ __forceinline__ float upper(uint32_t bits) { return weight_at(make_uint4(bits, 0, 0, 0), 1, (const Real*)nullptr); }

struct ClusterConsumer
{
    static constexpr int PAIRS = ceil_div(C / 2, THREADS);  // of channels per thread in the norm
    static constexpr int COLUMNS = OUTPUTS / 4, PASSES = ceil_div(COLUMNS, 2 * STEP_WARPS);

    ClusterStep& step;
    const PartSums<NH> after_attention;
    const PartSums<CLUSTERS> after_mlp;
    Packet* const best_packets;
    uint32_t epoch;  // of the layer
    float residual[PASSES] = {}, mean_before = 0.0f;
    uint32_t bias[PASSES], gain[PAIRS], shift[PAIRS];  // of the next norm, loaded one phase ahead
    uint32_t row_bias, next_row_bias;                  // of the product's rows that the thread sends, and of the next phase's
    float output_scale[PASSES], row_scale[2];          // of the same rows, if they have scales
    unsigned used[BUFFERS] = {};

    // Of the block's outputs: the column of four that half a warp adds up in a pass, and the lane's output of the four.
    __device__ __forceinline__ int column(int pass) const { return (pass * STEP_WARPS + warp_id()) * 2 + lane_id() / 16; }
    __device__ __forceinline__ int output(int pass) const { return step.rank * OUTPUTS + column(pass) * 4 + lane_id() % 16 / 4; }

    // cluster_stream.cuh: operands that are loaded a phase ahead, and the residual stream with its norm.
    __device__ __forceinline__ void preload_vectors(int phase);
    __device__ __forceinline__ void preload_row_biases(int phase, int head);
    __device__ __forceinline__ void ask_for_row_scales(int phase, int head);
    __device__ __forceinline__ void receive(int phase);

    // Waits until a buffer has been filled; tells the producer that it has been read.
    __device__ __forceinline__ void await(int buffer)
    {
        step.watch.start(WEIGHTS);
        byte_barrier_wait(step.s.full + buffer, used[buffer]++ % 2);
        step.watch.start(PRODUCTS);
    }
    __device__ __forceinline__ void release(uint64_t* barrier)
    {
        __syncwarp();
        if (lane_id() < ARRIVING) byte_barrier_arrive(barrier);
    }
    // The same, for a buffer whose results are in flight through L2: the next weights would delay other blocks' data.
    __device__ __forceinline__ void release_late(int buffer)
    {
        if (ONE_HEAD && LATE_REFILL > 0) release(step.s.empty + buffer);
    }

    // cluster_rows.cuh: the products.
    template <class S>
    __device__ __forceinline__ void multiply_rows(int buffer, int rows, bool late);
    template <class S>
    __device__ __forceinline__ float row_sum(int row) const
    {
        float sum = step.s.partial[row * S::WARPS];
#pragma unroll
        for (int i = 1; i < S::WARPS; i++) sum += step.s.partial[row * S::WARPS + i];
        return sum;
    }
    template <int N, bool WITH_ERRORS, int PARTS_>
    __device__ __forceinline__ void multiply_outputs(int buffer, int stride, const Factor* vector, int errors_at,
                                                     const PartSums<PARTS_>& to, int part);
    __device__ __forceinline__ Best head();
    __device__ __forceinline__ void pick(Best best);

    // cluster_attention.cuh: scores and weighted values of the block's keys, and the sum over the cluster.
    __device__ __forceinline__ void attend(const float* qkv, float scale);
    __device__ __forceinline__ void send_outputs_to_cluster(int k);
    __device__ __forceinline__ void merge_heads(int k);

    // clusters.cuh: the step.
    __device__ __forceinline__ void attention(int layer);
    __device__ __forceinline__ void mlp(int layer);
    __device__ __forceinline__ void run(int* clock);
};

}  // namespace decode::clusters
