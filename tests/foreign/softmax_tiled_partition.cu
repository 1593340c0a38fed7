#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cfloat>
namespace cg = cooperative_groups;
__global__ void softmax_warp(float* out, const float* inp, int N, int C) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    int idx = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (idx >= N) return;
    const float* x = inp + idx * C;
    float maxval = -FLT_MAX, sum = 0.f;
    for (int i = warp.thread_rank(); i < C; i += warp.size()) {
        float v = x[i];
        float m = max(maxval, v);
        sum = sum * expf(maxval - m) + expf(v - m);
        maxval = m;
    }
    float gm = cg::reduce(warp, maxval, cg::greater<float>{});
    sum *= expf(maxval - gm);
    sum = cg::reduce(warp, sum, cg::plus<float>{});
    float norm = 1.f / sum;
    for (int i = warp.thread_rank(); i < C; i += warp.size())
        out[idx * C + i] = expf(__ldcs(x + i) - gm) * norm;
}
void softmax_forward(float* out, const float* inp, int N, int C, int block_size) {
    int grid = (N * 32 + block_size - 1) / block_size;
    softmax_warp<<<grid, block_size>>>(out, inp, N, C);
}
