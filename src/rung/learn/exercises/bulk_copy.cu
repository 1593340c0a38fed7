/*---
idea   = "The copy engine brings a whole row into shared memory and arrives at a byte barrier."
dtypes = ["f32"]
needs  = "sm >= 90"
[[launch]]
kernel = "layernorm"
grid   = "B * T"
block  = 32
shared = "round_up(C * 4, 16)"
---*/
#include "rung.cuh"

extern "C" __global__ void layernorm(const float* x, const float* weight, const float* bias, float* out, int C, float eps)
{
    extern __shared__ __align__(128) float row[];
    __shared__ uint64_t arrived;
    const int lane = threadIdx.x;
    const float* source = x + int64_t(blockIdx.x) * C;
    const bool whole = C % 4 == 0 && uintptr_t(source) % 16 == 0;  // bulk copies move multiples of 16 bytes
    if (lane == 0 && whole) {
        byte_barrier_init(&arrived);
        byte_barrier_expect(&arrived, BLANK_1);
        bulk_copy(row, source, C * 4, &arrived);
    }
    for (int c = lane; c < C && !whole; c += 32) row[c] = source[c];
    __syncwarp();
    if (whole) byte_barrier_wait(&arrived, BLANK_2);
    float sum = 0.0f, squares = 0.0f;
    for (int c = lane; c < C; c += 32) sum += row[c];
    const float mean = warp_sum(sum) / C;
    for (int c = lane; c < C; c += 32) squares += (row[c] - mean) * (row[c] - mean);
    const float rstd = rsqrtf(warp_sum(squares) / C + eps);
    for (int c = lane; c < C; c += 32) out[int64_t(blockIdx.x) * C + c] = (row[c] - mean) * rstd * weight[c] + bias[c];
}
