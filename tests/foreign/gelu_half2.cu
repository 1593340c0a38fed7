// GELU on pairs of halves, arithmetic in half.
#include <cuda_fp16.h>

__global__ void gelu_half(const __half* __restrict__ x, __half* __restrict__ y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = __half2float(x[i]);
    __half inner = __float2half(tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
    y[i] = __hmul(__float2half(0.5f * v), __hadd(__float2half(1.0f), inner));
}
