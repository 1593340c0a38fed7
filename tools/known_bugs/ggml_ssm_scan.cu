// A scan of four tokens with 128 channels and 16 states.
#define USE_CUB
#include "common.cuh"

#include "ggml_host.h"
#include <cub/cub.cuh>
#include <cut.cuh>

int main()
{
    constexpr int channels = 128, states = 16, tokens = 4, row = channels * 4;
    float *s, *x, *dt, *a, *b, *c, *out;
    int* ids;
    cudaMalloc(&s, row * states), cudaMalloc(&x, row * tokens), cudaMalloc(&dt, row * tokens);
    cudaMalloc(&a, row * states), cudaMalloc(&b, tokens * states * 4), cudaMalloc(&c, tokens * states * 4);
    cudaMalloc(&out, row * tokens + row * states), cudaMalloc(&ids, 4);
    cudaMemset(s, 0, row * states), cudaMemset(x, 0, row * tokens), cudaMemset(dt, 0, row * tokens);
    cudaMemset(a, 0, row * states), cudaMemset(b, 0, tokens * states * 4), cudaMemset(c, 0, tokens * states * 4);
    cudaMemset(ids, 0, 4);
    ssm_scan_f32<channels, states, 0><<<1, channels>>>(s, x, dt, a, b, c, ids, out, states * 4, row * states, row, row * tokens,
                                                       row, row * tokens, states * 4, states * 4, tokens * states * 4, states * 4,
                                                       tokens * states * 4, row * tokens, channels, tokens);
    return cudaDeviceSynchronize();
}
