/*---
idea = "A kernel for the mean, a kernel for the deviation, a kernel for the rest."
needs = "eps == 1e-5"
[bind]
inp = "x"
N = "B * T"
block_size = 128
[[launch]]
kernel = "mean_kernel"
grid = "B * T"
block = 128
shared = "128 * 4"
[[launch]]
kernel = "rstd_kernel"
grid = "B * T"
block = 128
shared = "128 * 4"
[[launch]]
kernel = "normalization_kernel"
grid = "ceil_div(B * T * C, 256)"
block = 256
---*/
// The mean, the reciprocal deviation and the normalised row, each by a kernel of its own.
#include <assert.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <cuda_runtime.h>

__global__ void mean_kernel(float* mean, const float* inp, int N, int C, int block_size) {
    extern __shared__ float shared[];
    int idx = blockIdx.x;
    int tid = threadIdx.x;
    const float* x = inp + idx * C;
    float sum = 0.0f;
    for (int i = tid; i < C; i += block_size) sum += x[i];
    shared[tid] = sum;
    __syncthreads();
    for (int stride = block_size / 2; stride >= 1; stride /= 2) {
        __syncthreads();
        if (tid < stride) shared[tid] += shared[tid + stride];
    }
    if (tid == 0) mean[idx] = shared[0] / C;
}

__global__ void rstd_kernel(float* rstd, const float* inp, const float* mean, int N, int C, int block_size) {
    extern __shared__ float shared[];
    int idx = blockIdx.x;
    int tid = threadIdx.x;
    const float* x = inp + idx * C;
    float m = mean[idx];
    float sum = 0.0f;
    for (int i = tid; i < C; i += block_size) {
        float diff = x[i] - m;
        sum += diff * diff;
    }
    shared[tid] = sum;
    __syncthreads();
    for (int stride = block_size / 2; stride >= 1; stride /= 2) {
        __syncthreads();
        if (tid < stride) shared[tid] += shared[tid + stride];
    }
    if (tid == 0) rstd[idx] = 1.0f / sqrtf(shared[0] / C + 1e-5f);
}

__global__ void normalization_kernel(float* out, const float* inp, float* mean, float* rstd, const float* weight,
                                     const float* bias, int B, int T, int C) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= B * T * C) return;
    int bt = idx / C;
    int c = idx % C;
    float n = rstd[bt] * (inp[idx] - mean[bt]);
    out[idx] = n * weight[c] + bias[c];
}

void layernorm_forward2(float* out, float* mean, float* rstd, const float* inp, const float* weight, const float* bias,
                        int B, int T, int C, const int block_size) {
    int N = B * T;
    mean_kernel<<<N, block_size, block_size * sizeof(float)>>>(mean, inp, N, C, block_size);
    rstd_kernel<<<N, block_size, block_size * sizeof(float)>>>(rstd, inp, mean, N, C, block_size);
    const int grid_size = (N * C + 255) / 256;
    normalization_kernel<<<grid_size, 256>>>(out, inp, mean, rstd, weight, bias, B, T, C);
}
