// Shared by the programs of one style: error checks, random numbers, and comparison with the CPU's result.
#pragma once
#include <assert.h>
#include <cuda_runtime.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

template <class T> __host__ __device__ T ceil_div(T dividend, T divisor) { return (dividend + divisor - 1) / divisor; }

inline void cuda_check(cudaError_t error, const char* file, int line)
{
    if (error != cudaSuccess) {
        printf("[CUDA ERROR] at file %s:%d: %s\n", file, line, cudaGetErrorString(error));
        exit(EXIT_FAILURE);
    }
}
#define cudaCheck(err) (cuda_check(err, __FILE__, __LINE__))

inline float* make_random_float(size_t n)
{
    float* out = (float*)malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++) out[i] = (float)rand() / RAND_MAX * 2.0f - 1.0f;
    return out;
}

inline float* to_device(const float* host, size_t n)
{
    float* d;
    cudaCheck(cudaMalloc(&d, n * sizeof(float)));
    cudaCheck(cudaMemcpy(d, host, n * sizeof(float), cudaMemcpyHostToDevice));
    return d;
}

inline void validate_result(const float* device, const float* expected, const char* name, size_t n, float tolerance = 1e-4f)
{
    float* got = (float*)malloc(n * sizeof(float));
    cudaCheck(cudaMemcpy(got, device, n * sizeof(float), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - expected[i]) <= tolerance * (1.0f + fabsf(expected[i])))) {
            printf("Mismatch of %s at %zu: CPU_ref: %f vs GPU: %f\n", name, i, expected[i], got[i]);
            exit(EXIT_FAILURE);
        }
    free(got);
}

template <class Kernel, class... Args> float benchmark_kernel(int repeats, Kernel kernel, Args&&... args)
{
    cudaEvent_t start, stop;
    cudaCheck(cudaEventCreate(&start));
    cudaCheck(cudaEventCreate(&stop));
    cudaCheck(cudaEventRecord(start, nullptr));
    for (int i = 0; i < repeats; i++) kernel(args...);
    cudaCheck(cudaEventRecord(stop, nullptr));
    cudaCheck(cudaEventSynchronize(start));
    cudaCheck(cudaEventSynchronize(stop));
    float ms;
    cudaCheck(cudaEventElapsedTime(&ms, start, stop));
    cudaCheck(cudaEventDestroy(start));
    cudaCheck(cudaEventDestroy(stop));
    return ms / repeats;
}
