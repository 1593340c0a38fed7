// The residual stream: each block adds up the partial sums of its own outputs, sends them to its cluster, and normalises the whole
// vector. The norm's vectors, biases and scales are loaded one phase ahead.
#pragma once
#include "cluster_consumer.cuh"

namespace decode::clusters {

// For phase `phase`: loads gain and shift of its norm, and the biases of its product's rows.
__device__ __forceinline__ void ClusterConsumer::preload_vectors(int phase)
{
    const Model& m = step.m;
    const int layer = phase / 2;
    const Real* g = phase == 2 * L ? +m.lnf_w : (phase % 2 ? +m.ln2_w : +m.ln1_w) + size_t(layer) * C;
    const Real* b = phase == 2 * L ? +m.lnf_b : (phase % 2 ? +m.ln2_b : +m.ln1_b) + size_t(layer) * C;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int pair = min(int(threadIdx.x) + i * THREADS, C / 2 - 1);
        gain[i] = load_pair_now(g + 2 * pair), shift[i] = load_pair_now(b + 2 * pair);
    }
    if (phase > 0) {
        const Real* added = phase % 2 ? Operands<PROJ>::bias(m, layer) : Operands<FC2>::bias(m, layer - 1);
#pragma unroll
        for (int i = 0; i < PASSES; i++) bias[i] = load_now(added + min(output(i), C - 1));
        if (SCALED) {
            const float* scales = phase % 2 ? m.proj_s + size_t(layer) * C : m.fc2_s + size_t(layer - 1) * C;
#pragma unroll
            for (int i = 0; i < PASSES; i++) output_scale[i] = ask_scale(scales + min(output(i), C - 1));
        }
    }
}

// Biases of the rows that the thread sends in phase `phase`: one of a head's product, two of the MLP's.
__device__ __forceinline__ void ClusterConsumer::preload_row_biases(int phase, int head)
{
    const Model& m = step.m;
    const int item = threadIdx.x / CLUSTER, layer = phase / 2, own = step.hidden / CLUSTER;
    if (phase % 2) {
        next_row_bias =
            load_pair_now(Operands<FC>::bias(m, layer) + step.hidden_begin + step.rank * own + min(2 * item, own - 2));
    } else if (phase < 2 * L) {
        const int row = min(item, 3 * HEAD_ROWS - 1), at = step.rank * HEAD_ROWS + row % HEAD_ROWS;
        next_row_bias = load_now(Operands<QKV>::bias(m, layer) + row / HEAD_ROWS * C + min(head, NH - 1) * HS + at);
    }
}

// The same rows' scales, loaded in the phase itself before its input vector, since registers are scarce.
__device__ __forceinline__ void ClusterConsumer::ask_for_row_scales(int phase, int head)
{
    const Model& m = step.m;
    const int item = threadIdx.x / CLUSTER, layer = phase / 2, own = step.hidden / CLUSTER;
    if (phase % 2) {
        const float* from = m.fc_s + size_t(layer) * F + step.hidden_begin + step.rank * own + min(2 * item, own - 2);
        row_scale[0] = ask_scale(from), row_scale[1] = ask_scale(from + 1);
    } else if (phase < 2 * L) {
        const int row = min(item, 3 * HEAD_ROWS - 1), at = step.rank * HEAD_ROWS + row % HEAD_ROWS;
        row_scale[0] = ask_scale(m.qkv_s + size_t(layer) * 3 * C + row / HEAD_ROWS * C + min(head, NH - 1) * HS + at);
    } else {
        const int token = step.vocabulary.begin(blockIdx.x) + warp_id() * 8 + lane_id() / 4;
        row_scale[0] = ask_scale(m.head_s + min(token, V - 1));
    }
}

// The residual stream: a block adds up its own outputs and sends them to its cluster, with their moments; then the norm.
__device__ __forceinline__ void ClusterConsumer::receive(int phase)
{
    ExchangeBuffers& s = step.s;
    const int lane = lane_id(), k = phase & 1;
    const int watched = phase == 2 * L ? IN_HEAD : k ? IN_MLP : IN_ATTENTION;
    step.watch.start(watched, PARTS_L2);
    if (phase > 0) byte_barrier_wait(&s.x_read, (phase - 1) % 2);
    if (phase > 0) delay_polling(k && step.cluster >= NH ? POLL_DELAY_IDLE_CYCLES : POLL_DELAY_CYCLES);
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        if (column(i) - lane / 16 >= COLUMNS) break;
        const int own = step.rank * COLUMNS + column(i);
        if (phase > 0)
            residual[i] +=
                scaled(k ? add_parts(after_attention, epoch, own) : add_parts(after_mlp, epoch - 1, own), output_scale[i]) +
                lower(bias[i]);
        float v[4], sum = 0.0f, square = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[j] = __shfl_sync(ALL_LANES, residual[i], (lane & 16) + 4 * j);
            sum += v[j] - mean_before, square += (v[j] - mean_before) * (v[j] - mean_before);
        }
        if (lane % 16 < CLUSTER) st_async4(s.x[k] + own * 4, s.x_full + k, lane % 16, make_float4(v[0], v[1], v[2], v[3]));
        sum += __shfl_xor_sync(ALL_LANES, sum, 16), square += __shfl_xor_sync(ALL_LANES, square, 16);
        if (lane >= 8 && lane < 8 + CLUSTER) st_async2(s.moments[k] + own / 2, s.x_full + k, lane - 8, make_float2(sum, square));
    }
    step.watch.start(IN_CLUSTER);
    await_cluster(s.x_full + k, phase / 2 % 2, X_BYTES);
    step.watch.start(NORM);
    if (phase > 0) {
        if (k ? step.cluster < NH : true) release_late(k ? PROJ : FC2);
        // perhaps never true: LATE_REFILL is less
        if (k == 0 && phase < 2 * L && LATE_REFILL > 1) release_late(FC);
    }
    float sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int i = 0; i < ceil_div(C / 8, WARP_SIZE); i++)
        if (lane + i * WARP_SIZE < C / 8) {
            const float2 moments = s.moments[k][lane + i * WARP_SIZE];
            sum += moments.x, square += moments.y;
        }
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {  // both sums at once
        const float other = __shfl_xor_sync(ALL_LANES, sum, offset);
        square += __shfl_xor_sync(ALL_LANES, square, offset), sum += other;
    }
    const float shifted = sum * (1.0f / C), mean = mean_before + shifted;
    const float rstd = rsqrtf(fmaxf(square * (1.0f / C) - shifted * shifted, 0.0f) + step.m.eps);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int pair = threadIdx.x + i * THREADS;
        if (pair >= C / 2) break;
        const float2 x = *reinterpret_cast<const float2*>(s.x[k] + 2 * pair);
        const float a = (x.x - mean) * rstd * lower(gain[i]) + lower(shift[i]);
        const float b = (x.y - mean) * rstd * upper(gain[i]) + upper(shift[i]);
        set_pair(s.vector, ROW_COLUMNS, pair, a, b);
    }
    mean_before = mean;
    sync_computing();
    if (phase < 2 * L && threadIdx.x < CLUSTER) byte_barrier_arrive_at(&s.x_read, threadIdx.x);
}

}  // namespace decode::clusters
