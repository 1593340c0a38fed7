#include <cuda_fp16.h>
__global__ void silu_and_mul(const half* gate, const half* up, half* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float g = __half2float(gate[i]);
    out[i] = __float2half(g / (1.0f + __expf(-g)) * __half2float(up[i]));
  }
}
