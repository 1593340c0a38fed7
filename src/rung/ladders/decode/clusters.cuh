// A whole step for one sequence by persistent clusters of blocks. A layer is two phases: attention, where a cluster has
// a head, and the MLP, where each cluster has a part of the hidden units. Within a phase data goes through distributed shared
// memory; partial sums for the residual stream are exchanged once per phase through L2. Weights have 16 bits, or 8 with one scale per
// row.
#pragma once
#include "cluster_attention.cuh"
#include "cluster_producer.cuh"
#include "cluster_rows.cuh"
#include "cluster_stream.cuh"

namespace decode::clusters {

__device__ __forceinline__ void ClusterConsumer::attention(int layer)
{
    const Model& m = step.m;
    ExchangeBuffers& s = step.s;
    const float scale = (BY_LAYER ? m.scale / (layer + 1) : m.scale) * 1.44269504f;  // for exp2
#pragma unroll 1
    for (int head = step.cluster; head < NH; head += CLUSTERS) {
        const unsigned phase = used[QKV];
        const int k = phase % 2;
        const unsigned parity = phase / 2 % 2;
        if (head != step.cluster) {  // not prefetched
            const uint32_t kept = next_row_bias;
            preload_row_biases(2 * layer, head), row_bias = next_row_bias, next_row_bias = kept;
            if (SCALED) ask_for_row_scales(2 * layer, head);
        }
        multiply_rows<QkvSplit>(QKV, 3 * HEAD_ROWS, false);
        const int item = threadIdx.x, row = item / CLUSTER, which = row / HEAD_ROWS;
        if (item < 3 * HS) {  // each of a row's threads sends the sum to one block
            const float x = scaled(row_sum<QkvSplit>(row), row_scale[0]) + lower(row_bias);
            const int at = step.rank * HEAD_ROWS + row % HEAD_ROWS;
            st_async1(s.qkv[k] + which * HS + at, s.qkv_full + k, item % CLUSTER, __float_as_uint(x));
            if (item % CLUSTER == 0 && which > 0)
                (which == 1 ? +m.k_cache : +m.v_cache)[cached(layer, 0, head, step.length) + at] = from_float<Real>(x);
        }
        step.watch.start(IN_CLUSTER);
        await_cluster(s.qkv_full + k, parity, QKV_BYTES);
        step.watch.start(KEYS);
        attend(s.qkv[k], scale);
        sync_computing();
        send_outputs_to_cluster(k);
        step.watch.start(IN_CLUSTER);
        await_cluster(s.heads_full + k, parity, HEADS_BYTES);
        step.watch.start(KEYS);
        merge_heads(k);
        sync_computing();
        multiply_outputs<PROJ_COLUMNS / CHUNK, true>(PROJ, PROJ_ROW, s.head_vector, PROJ_COLUMNS, after_attention, head);
    }
}

__device__ __forceinline__ void ClusterConsumer::mlp(int layer)
{
    ExchangeBuffers& s = step.s;
    const int own = step.hidden / CLUSTER, k = layer % 2;
    multiply_rows<FcSplit>(FC, own, ONE_HEAD && LATE_REFILL > 1 && layer < L - 1);
#pragma unroll
    for (int first = 0; first < MOST_HIDDEN / 2; first += THREADS) {
        const int item = first + threadIdx.x, row = item / CLUSTER * 2;
        if (row >= own) break;
        // perhaps never true: only an MLP of gpt2's width has more pairs than threads
        if (first > 0) {
            const size_t at = size_t(layer) * F + step.hidden_begin + step.rank * own + row;
            row_bias = load_pair_now(step.m.fc_b + at);
            if (SCALED) row_scale[0] = ask_scale(step.m.fc_s + at), row_scale[1] = ask_scale(step.m.fc_s + at + 1);
        }
        const float a = activated(scaled(row_sum<FcSplit>(row), row_scale[0]) + lower(row_bias));
        const float b = activated(scaled(row_sum<FcSplit>(row + 1), row_scale[1]) + upper(row_bias));
        st_async1(s.hidden[k] + step.rank * own + row, s.hidden_full + k, item % CLUSTER, pack2<Factor>(in_half(a), in_half(b)));
    }
    step.watch.start(IN_CLUSTER);
    await_cluster(s.hidden_full + k, layer / 2 % 2, step.hidden * 2);
    multiply_outputs<ceil_div(MOST_HIDDEN, CHUNK), false>(FC2, FC2_ROW, s.hidden[k], 0, after_mlp, step.cluster);
}

__device__ __forceinline__ void ClusterConsumer::run(int* clock)
{
    const Model& m = step.m;
    preload_vectors(0), preload_row_biases(0, step.cluster);
    step.wait_for_input();
    epoch = uint32_t(load_fresh(clock + blockIdx.x)) + 1;
    const Real *token = m.wte + size_t(load_fresh(m.tokens)) * C, *position = m.wpe + size_t(step.length) * C;
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        const int channel = min(output(i), C - 1);
        residual[i] = to_float(token[channel]) + to_float(position[channel]);
    }
#pragma unroll 1
    for (int phase = 0; phase <= 2 * L; phase++) {
        if (SCALED) ask_for_row_scales(phase, step.cluster);
        receive(phase);
        if (phase == 2 * L) break;
        row_bias = next_row_bias;
        preload_vectors(phase + 1), preload_row_biases(phase + 1, step.cluster);
        if (phase % 2)
            mlp(phase / 2), epoch++;
        else if (step.cluster < NH)
            attention(phase / 2);
    }
    pick(head());
    if (threadIdx.x == 0) clock[blockIdx.x] = int(epoch);
}

__device__ __forceinline__ void step_in_clusters(const Model& m, Packet* packets, int* clock, int* spent)
{
    extern __shared__ uint4 storage[];
    __shared__ ExchangeBuffers s;
    pdl_launch_dependents();
    const bool copying = warp_id() == STEP_WARPS;
    const int first = copying ? int(IN_COPIES) : int(IN_ATTENTION), last = copying ? int(IN_COPIES) : int(IN_HEAD);
    ClusterStep step(m, s, storage, Watch(copying || threadIdx.x == 0, first, last, WEIGHTS));
    if (threadIdx.x == 0) {
        byte_barrier_init(&s.x_read, CLUSTER);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            byte_barrier_init(s.x_full + k), byte_barrier_expect(s.x_full + k, X_BYTES);
            byte_barrier_init(s.qkv_full + k), byte_barrier_expect(s.qkv_full + k, QKV_BYTES);
            byte_barrier_init(s.heads_full + k), byte_barrier_expect(s.heads_full + k, HEADS_BYTES);
            byte_barrier_init(s.hidden_full + k), byte_barrier_expect(s.hidden_full + k, step.hidden * 2);
        }
    }
    for (int i = lane_id(); copying && i < BUFFERS; i += WARP_SIZE)
        byte_barrier_init(s.full + i), byte_barrier_init(s.empty + i, STEP_WARPS * ARRIVING);
    for (int i = lane_id(); copying && i < SLOTS; i += WARP_SIZE)
        byte_barrier_init(s.tile_full + i), byte_barrier_init(s.tile_empty + i, ARRIVING);
    // Zeros in rows and vector for columns of the second product that the cluster does not have.
    const int width = step.hidden / (4 / SIZE), none = FC2_ROW / 4 - width;
    uint32_t* const rows = reinterpret_cast<uint32_t*>(storage) + BEGIN[FC2] / 4;
    for (int i = threadIdx.x; i < OUTPUTS * none; i += THREADS + WARP_SIZE) rows[i / none * (FC2_ROW / 4) + width + i % none] = 0;
    const int missing = FC2_COLUMNS / 2 - step.hidden / 2;
    // perhaps never several turns: few columns are missing
    for (int i = threadIdx.x; i < 2 * missing; i += THREADS + WARP_SIZE)
        reinterpret_cast<uint32_t*>(s.hidden[i / missing])[step.hidden / 2 + i % missing] = 0;
    clear_half_chunks(s, storage);
    __syncthreads();
    cluster_sync();
    if (copying) {
        if (elect_one()) {
            WeightProducer producer = {step};
            producer.run();
            step.watch.stop(spent, first, last);
        }
        return;
    }
    PartSums<NH> after_attention = {packets};
    PartSums<CLUSTERS> after_mlp = {packets + PartSums<NH>::SIZE};
    ClusterConsumer consumer = {step, after_attention, after_mlp, packets + PartSums<NH>::SIZE + PartSums<CLUSTERS>::SIZE};
    consumer.run(clock);
    step.watch.stop(spent, first, last);
}

}  // namespace decode::clusters
