// A group of 4,096 numbers, normed by a block of 1,024 threads.
#include "common.cuh"

#include "ggml_host.h"
#include <cut.cuh>

int main()
{
    float *x, *out;
    cudaMalloc(&x, 16384), cudaMalloc(&out, 16384);
    cudaMemset(x, 0, 16384);
    group_norm_f32<1024><<<1, 1024, 2 * 32 * sizeof(float)>>>(x, out, 4096, 4096, 1e-5f);
    return cudaDeviceSynchronize();
}
