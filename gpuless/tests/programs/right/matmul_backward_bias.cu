#include "common.h"
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <vector>

__global__ void bias1(float* dbias, const float* dout, int B, int T, int OC)
{
    extern __shared__ float shared[];
    int o = blockIdx.x, tid = threadIdx.x;
    float sum = 0.0f;
    for (int i = tid; i < B * T; i += blockDim.x) sum += dout[i * OC + o];
    shared[tid] = sum;
    __syncthreads();
    for (int stride = blockDim.x / 2; stride >= 1; stride /= 2) {
        __syncthreads();
        if (tid < stride) shared[tid] += shared[tid + stride];
    }
    if (tid == 0) dbias[o] += shared[0];
}
__global__ void bias2(float* dbias, const float* dout, int B, int T, int OC)
{
    namespace cg = cooperative_groups;
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(cg::this_thread_block());
    int o = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (o >= OC) return;
    float sum = 0.0f;
    for (int i = warp.thread_rank(); i < B * T; i += warp.size()) sum += dout[i * OC + o];
    sum = cg::reduce(warp, sum, cg::plus<float>{});
    if (warp.thread_rank() == 0) dbias[o] += sum;
}
__global__ void bias3(float* dbias, const float* dout, int B, int T, int OC)
{
    __shared__ float smem[8][32];
    int col = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    for (int row = blockIdx.y * 8 + threadIdx.y; row < B * T; row += gridDim.y * 8) sum += col < OC ? dout[row * OC + col] : 0.0f;
    smem[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && col < OC) {
        for (int i = 1; i < 8; i++) sum += smem[i][threadIdx.x];
        atomicAdd(dbias + col, sum);
    }
}
int main()
{
    const int B = 3, T = 17, OC = 70;
    float* dout = make_random_float(B * T * OC);
    std::vector<float> expected(OC);
    for (int i = 0; i < B * T; i++) for (int o = 0; o < OC; o++) expected[o] += dout[i * OC + o];
    float *d_dout = to_device(dout, B * T * OC), *d_bias;
    cudaCheck(cudaMalloc((void**)&d_bias, OC * sizeof(float)));
    for (int kernel = 1; kernel <= 3; kernel++) {
        cudaCheck(cudaMemset(d_bias, 0, OC * sizeof(float)));
        if (kernel == 1) bias1<<<OC, 64, 64 * sizeof(float)>>>(d_bias, d_dout, B, T, OC);
        if (kernel == 2) bias2<<<ceil_div(OC, 4), 128>>>(d_bias, d_dout, B, T, OC);
        if (kernel == 3) bias3<<<dim3(ceil_div(OC, 32), 2), dim3(32, 8)>>>(d_bias, d_dout, B, T, OC);
        validate_result(d_bias, expected.data(), "dbias", OC);
    }
    printf("OK\n");
}
