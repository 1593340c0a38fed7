// Softmax with the maximum and the sum in one pass, one warp per row.
#include <stdio.h>
#include <float.h>
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

struct __align__(8) SumMax {
    float maxval;
    float sum;
};

__device__ __forceinline__ SumMax combine(SumMax a, SumMax b) {
    bool bigger = a.maxval > b.maxval;
    SumMax large = bigger ? a : b;
    SumMax small = bigger ? b : a;
    SumMax res;
    res.maxval = large.maxval;
    res.sum = large.sum + small.sum * expf(small.maxval - large.maxval);
    return res;
}

__global__ void softmax_forward_online_kernel(float* out, const float* inp, int N, int C) {
    namespace cg = cooperative_groups;
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    int idx = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (idx >= N) {
        return;
    }
    const float* x = inp + idx * C;
    SumMax sm_partial;
    sm_partial.maxval = -INFINITY;
    sm_partial.sum = 0.0f;
    for (int i = warp.thread_rank(); i < C; i += warp.size()) {
        sm_partial = combine(sm_partial, {x[i], 1.0f});
    }
    float top = cg::reduce(warp, sm_partial.maxval, cg::greater<float>{});
    float part = sm_partial.maxval == -INFINITY ? 0.0f : sm_partial.sum * expf(sm_partial.maxval - top);
    float sum = cg::reduce(warp, part, cg::plus<float>{});
    for (int i = warp.thread_rank(); i < C; i += warp.size()) {
        __stcs(out + idx * C + i, expf(__ldcs(x + i) - top) / sum);
    }
}

void softmax_forward(float* out, const float* inp, int N, int C, const int block_size) {
    const int grid_size = (N * 32 + block_size - 1) / block_size;
    softmax_forward_online_kernel<<<grid_size, block_size>>>(out, inp, N, C);
}
