// GELU of eight bfloat16 numbers at a time.
#include <math.h>
#include <string.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

typedef __nv_bfloat16 floatX;
#define GELU_SCALING_FACTOR sqrtf(2.0f / M_PI)

struct alignas(16) x128 {
    floatX payload[8];
    static constexpr int size = 8;
};

__global__ void gelu_forward_kernel2(floatX* out, const floatX* inp, int N) {
    int idx = (blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (idx + x128::size <= N) {
        int4 bits = __ldcs(reinterpret_cast<const int4*>(inp + idx));
        x128 packed_inp, packed_out;
        memcpy(&packed_inp, &bits, sizeof(bits));
        for (int k = 0; k < x128::size; ++k) {
            float xi = (float)packed_inp.payload[k];
            float cube = 0.044715f * xi * xi * xi;
            packed_out.payload[k] = (floatX)(0.5f * xi * (1.0f + tanhf(GELU_SCALING_FACTOR * (xi + cube))));
        }
        memcpy(&bits, &packed_out, sizeof(bits));
        *reinterpret_cast<int4*>(out + idx) = bits;
    } else {
        for (int i = idx; i < N; ++i) {
            float xi = __bfloat162float(inp[i]);
            float cube = 0.044715f * xi * xi * xi;
            out[i] = __float2bfloat16(0.5f * xi * (1.0f + tanhf(GELU_SCALING_FACTOR * (xi + cube))));
        }
    }
}

void gelu_forward(floatX* out, const floatX* inp, int N, cudaStream_t stream) {
    const int block_size = 512;
    const int grid_size = (N + block_size * x128::size - 1) / (block_size * x128::size);
    gelu_forward_kernel2<<<grid_size, block_size, 0, stream>>>(out, inp, N);
}
