// Only the kernel: one block per row, shared memory of a fixed size.
#include <math.h>

const int BLOCK_SIZE = 256;

__global__ void softmax_kernel(const float* __restrict__ input, float* __restrict__ output, int rows, int cols) {
    __shared__ float shared[BLOCK_SIZE];
    int row = blockIdx.x;
    int tid = threadIdx.x;
    float m = -INFINITY;
    for (int c = tid; c < cols; c += BLOCK_SIZE) m = fmaxf(m, input[row * cols + c]);
    shared[tid] = m;
    __syncthreads();
    for (int s = BLOCK_SIZE / 2; s > 0; s >>= 1) {
        if (tid < s) shared[tid] = fmaxf(shared[tid], shared[tid + s]);
        __syncthreads();
    }
    m = shared[0];
    __syncthreads();
    float sum = 0.0f;
    for (int c = tid; c < cols; c += BLOCK_SIZE) sum += expf(input[row * cols + c] - m);
    shared[tid] = sum;
    __syncthreads();
    for (int s = BLOCK_SIZE / 2; s > 0; s >>= 1) {
        if (tid < s) shared[tid] += shared[tid + s];
        __syncthreads();
    }
    sum = shared[0];
    for (int c = tid; c < cols; c += BLOCK_SIZE) output[row * cols + c] = expf(input[row * cols + c] - m) / sum;
}
