/*---
idea = "A warp per row, an online maximum, four columns at a time."
needs = ["causal == 1", "T == S"]
[bind]
inv_temperature = "scale"
inp = "x"
N = "B * NH"
[[launch]]
kernel = "softmax_forward_kernel5"
grid = "ceil_div(B * NH * T * 32, 256)"
block = 256
---*/
// The softmax of causal scores, a warp per row, four columns at a time; rows are visited from the last.
#include <assert.h>
#include <float.h>
#include <cuda_runtime.h>

__device__ float& vec_at(float4& vec, int index) { return reinterpret_cast<float*>(&vec)[index]; }
__device__ float vec_at(const float4& vec, int index) { return reinterpret_cast<const float*>(&vec)[index]; }

__device__ float warpReduceMax(float val) {
    for (int offset = 16; offset > 0; offset /= 2) val = fmaxf(val, __shfl_down_sync(0xFFFFFFFF, val, offset));
    return __shfl_sync(0xFFFFFFFF, val, 0);
}
__device__ float warpReduceSum(float val) {
    for (int offset = 16; offset > 0; offset /= 2) val += __shfl_down_sync(0xFFFFFFFF, val, offset);
    return __shfl_sync(0xFFFFFFFF, val, 0);
}

__global__ void softmax_forward_kernel5(float* out, float inv_temperature, const float* inp, int N, int T) {
    int lane_id = threadIdx.x % warpSize;
    int warp_id = threadIdx.x / warpSize;
    int num_warps = blockDim.x / warpSize;
    int idx = (gridDim.x - blockIdx.x - 1) * num_warps + warp_id;
    if (idx >= N * T) return;
    int own_pos = idx % T;
    const float* x = inp + idx * T;
    float maxval = -FLT_MAX;
    float sumval = 0.0f;
    for (int i = lane_id; i <= own_pos; i += warpSize) {
        float old_maxval = maxval;
        maxval = fmaxf(maxval, x[i]);
        sumval *= expf(inv_temperature * (old_maxval - maxval));
        sumval += expf(inv_temperature * (x[i] - maxval));
    }
    float global_maxval = warpReduceMax(maxval);
    sumval *= expf(inv_temperature * (maxval - global_maxval));
    float sum = warpReduceSum(sumval);
    float norm = 1.f / sum;
    for (int i = lane_id; i < T; i += warpSize) {
        float ev = i <= own_pos ? expf(inv_temperature * (__ldcs(x + i) - global_maxval)) : 0.0f;
        __stcs(out + idx * T + i, ev * norm);
    }
}

void softmax_forward5(float* out, const float* inp, float scale, int B, int NH, int T, const int block_size) {
    int grid_size = (B * NH * T * 32 + block_size - 1) / block_size;
    softmax_forward_kernel5<<<grid_size, block_size>>>(out, scale, inp, B * NH, T);
}
