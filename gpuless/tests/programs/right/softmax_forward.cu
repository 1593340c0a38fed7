#include "common.h"
#include <vector>

__global__ void softmax_shared(float* out, const float* inp, int N, int C)
{
    extern __shared__ float shared[];
    int idx = blockIdx.x, tid = threadIdx.x, size = blockDim.x;
    const float* x = inp + idx * C;
    float maxval = -INFINITY;
    for (int i = tid; i < C; i += size) maxval = fmaxf(maxval, x[i]);
    shared[tid] = maxval;
    __syncthreads();
    for (int stride = size / 2; stride >= 1; stride /= 2) {
        if (tid < stride) shared[tid] = fmaxf(shared[tid], shared[tid + stride]);
        __syncthreads();
    }
    float offset = shared[0];
    for (int i = tid; i < C; i += size) out[idx * C + i] = expf(x[i] - offset);
    __syncthreads();
    float sumval = 0.0f;
    for (int i = tid; i < C; i += size) sumval += out[idx * C + i];
    shared[tid] = sumval;
    __syncthreads();
    for (int stride = size / 2; stride >= 1; stride /= 2) {
        if (tid < stride) shared[tid] += shared[tid + stride];
        __syncthreads();
    }
    float sum = shared[0];
    for (int i = tid; i < C; i += size) out[idx * C + i] /= sum;
}

struct SumMax { float maxval, sum; };
__device__ __forceinline__ SumMax merge(SumMax a, SumMax b)
{
    bool a_bigger = a.maxval > b.maxval;
    SumMax bigger = a_bigger ? a : b, smaller = a_bigger ? b : a;
    return {bigger.maxval, bigger.sum + smaller.sum * expf(smaller.maxval - bigger.maxval)};
}
__global__ void softmax_online(float* out, const float* inp, int N, int C)
{
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= N) return;
    SumMax sm = {-FLT_MAX, 0.0f};
    for (int i = lane; i < C; i += 32) sm = merge(sm, SumMax{inp[row * C + i], 1.0f});
    for (int offset = 16; offset > 0; offset >>= 1)
        sm = merge(sm, SumMax{__shfl_xor_sync(~0u, sm.maxval, offset), __shfl_xor_sync(~0u, sm.sum, offset)});
    for (int i = lane; i < C; i += 32) __stcs(&out[row * C + i], expf(inp[row * C + i] - sm.maxval) / sm.sum);
}

int main()
{
    const int N = 13, C = 77;
    float* x = make_random_float(N * C);
    std::vector<float> y(N * C);
    for (int n = 0; n < N; n++) {
        double sum = 0;
        for (int i = 0; i < C; i++) sum += exp(x[n * C + i]);
        for (int i = 0; i < C; i++) y[n * C + i] = exp(x[n * C + i]) / sum;
    }
    float *d_x = to_device(x, N * C), *d_y = to_device(x, N * C);
    softmax_shared<<<N, 64, 64 * sizeof(float)>>>(d_y, d_x, N, C);
    validate_result(d_y, y.data(), "shared", N * C);
    cudaMemset(d_y, 0, N * C * 4);
    softmax_online<<<ceil_div(N, 4), 128>>>(d_y, d_x, N, C);
    validate_result(d_y, y.data(), "online", N * C);
    printf("OK\n");
}
