/*---
idea   = "Two buffers and two byte barriers in turn: rows arrive ahead, and a wait names the phase that it waits for."
dtypes = ["f32"]
needs  = ["sm >= 90", "N <= 25000"]
[[launch]]
kernel = "row_sum"
grid   = "min(ceil_div(B, 3), 64)"
block  = 32
shared = "2 * round_up(N * 4, 16)"
---*/
#include "rung.cuh"

extern "C" __global__ void row_sum(const float* x, float* out, int B, int N)
{
    extern __shared__ __align__(128) float buffers[];
    __shared__ uint64_t full[2];
    const int lane = threadIdx.x, step = gridDim.x;
    const bool whole = N % 4 == 0 && uintptr_t(x) % 16 == 0;
    const auto copy = [&](int row, int stage) {
        if (row >= B || !whole || lane != 0) return;
        byte_barrier_expect(&full[stage], N * 4);
        bulk_copy(buffers + stage * N, x + int64_t(row) * N, N * 4, &full[stage]);
    };
    for (int stage = 0; stage < 2; stage++) {
        if (lane == 0) byte_barrier_init(&full[stage]);
        copy(blockIdx.x + stage * step, stage);
    }
    __syncwarp();
    int turn = 0;
    for (int row = blockIdx.x; row < B; row += step, turn++) {
        const int stage = turn % 2;
        if (whole) byte_barrier_wait(&full[stage], BLANK_1);
        const float* here = whole ? buffers + stage * N : x + int64_t(row) * N;
        float sum = 0.0f;
        for (int n = lane; n < N; n += 32) sum += here[n];
        BLANK_2;  // all lanes have read the buffer
        copy(BLANK_3, stage);
        sum = warp_sum(sum);
        if (lane == 0) out[row] = sum;
    }
}
