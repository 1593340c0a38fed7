// The linear layer, one thread per result.
#include <stdio.h>
#include <stdlib.h>
#include <cuda_runtime.h>

static inline int ceil_div(int M, int N) { return (M + N - 1) / N; }

__global__ void matmul_forward_kernel1(float* out, const float* inp, const float* weight, const float* bias, int BT, int C, int OC) {
    int bt = blockIdx.x * blockDim.x + threadIdx.x;
    int oc = blockIdx.y * blockDim.y + threadIdx.y;
    if (bt < BT && oc < OC) {
        float val = (bias != NULL) ? bias[oc] : 0.0f;
        const float* wrow = weight + oc * C;
        const float* inp_bt = inp + bt * C;
        for (int i = 0; i < C; i++) {
            val += inp_bt[i] * wrow[i];
        }
        out[bt * OC + oc] = val;
    }
}

void matmul_forward1(float* out, const float* inp, const float* weight, const float* bias, int B, int T, int C, int OC, const int sqrt_block_size) {
    dim3 gridDim(ceil_div(B * T, 16), ceil_div(OC, 16));
    dim3 blockDim(16, 16);
    matmul_forward_kernel1<<<gridDim, blockDim>>>(out, inp, weight, bias, B * T, C, OC);
}
