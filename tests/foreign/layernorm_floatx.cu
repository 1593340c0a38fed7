// Layer normalisation with a type that is chosen when compiling, statistics in shared memory.
#include <stdio.h>
#include <stdlib.h>
#include <assert.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#if defined(ENABLE_BF16)
typedef __nv_bfloat16 floatX;
#else
typedef float floatX;
#endif

#define WARP_SIZE 32U
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))

template <typename T>
__device__ T warpReduceSum(T val) {
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
        val += __shfl_xor_sync(0xFFFFFFFF, val, offset);
    }
    return val;
}

__global__ void layernorm_forward_kernel(floatX* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd,
                                         const floatX* __restrict__ inp, const floatX* __restrict__ weight,
                                         const floatX* __restrict__ bias, int N, int C) {
    int lane_id = threadIdx.x % WARP_SIZE;
    int warp_id = threadIdx.x / WARP_SIZE;
    int num_warps = blockDim.x / WARP_SIZE;
    int idx = blockIdx.x * num_warps + warp_id;
    if (idx >= N) { return; }
    const floatX* x = inp + idx * C;
    float sum = 0.0f;
    for (int i = lane_id; i < C; i += WARP_SIZE) { sum += (float)x[i]; }
    sum = warpReduceSum(sum);
    float m = sum / C;
    if (lane_id == 0 && mean != nullptr) { __stcs(mean + idx, m); }
    sum = 0.0f;
    for (int i = lane_id; i < C; i += WARP_SIZE) {
        float diff = (float)x[i] - m;
        sum += diff * diff;
    }
    sum = warpReduceSum(sum);
    float s = rsqrtf(sum / C + 1e-5f);
    if (lane_id == 0 && rstd != nullptr) { __stcs(rstd + idx, s); }
    floatX* o = out + idx * C;
    for (int c = lane_id; c < C; c += WARP_SIZE) {
        float n = s * ((float)__ldcs(x + c) - m);
        __stcs(o + c, (floatX)(n * (float)weight[c] + (float)bias[c]));
    }
}

void layernorm_forward(floatX* out, float* mean, float* rstd, floatX* inp, const floatX* weight, const floatX* bias,
                       int B, int T, int C, cudaStream_t stream) {
    const int block_size = 256;
    int block_y = block_size / WARP_SIZE;
    const int N = B * T;
    const int grid_size = CEIL_DIV(N, block_y);
    layernorm_forward_kernel<<<grid_size, block_size, 0, stream>>>(out, mean, rstd, inp, weight, bias, N, C);
    if (cudaGetLastError() != cudaSuccess) exit(1);
}
