/*---
idea   = "Running sums of long rows: scan each part, scan the parts' sums, add what lies before."
dtypes = ["f32"]
buffers.sums = { shape = ["B", "ceil_div(N, 128)"], dtype = "f32" }
[[launch]]
kernel = "scan_parts"
grid   = ["ceil_div(N, 128)", "B"]
block  = 128
[[launch]]
kernel = "scan_sums"
grid   = "B"
block  = 32
[[launch]]
kernel = "add_before"
grid   = ["ceil_div(N, 128)", "B"]
block  = 128
---*/
#include "rung.cuh"

extern "C" __global__ void scan_parts(const float* x, float* out, float* sums, int N)
{
    __shared__ float part[128];
    const int n = blockIdx.x * 128 + threadIdx.x;
    part[threadIdx.x] = n < N ? x[int64_t(blockIdx.y) * N + n] : 0.0f;
    for (int apart = 1; apart < 128; apart *= 2) {
        __syncthreads();
        const float before = threadIdx.x >= apart ? part[threadIdx.x - apart] : 0.0f;
        __syncthreads();
        part[threadIdx.x] += before;
    }
    if (n < N) out[int64_t(blockIdx.y) * N + n] = part[threadIdx.x];
    if (threadIdx.x == 127) sums[BLANK_1] = part[127];
}

extern "C" __global__ void scan_sums(float* sums, int N)  // afterwards: the sum of all parts before each
{
    if (threadIdx.x != 0) return;
    float before = 0.0f;
    for (int part = 0; part < ceil_div(N, 128); part++) {
        float* sum = &sums[int64_t(blockIdx.x) * ceil_div(N, 128) + part];
        const float own = *sum;
        *sum = BLANK_2;
        before += own;
    }
}

extern "C" __global__ void add_before(float* out, const float* sums, int N)
{
    const int n = blockIdx.x * 128 + threadIdx.x;
    if (n < N) out[int64_t(blockIdx.y) * N + n] += BLANK_3;
}
