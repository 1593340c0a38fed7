/*---
idea   = "Rows are added while the next chunk of each arrives in shared memory: cp.async with two buffers."
dtypes = ["f32"]
needs  = "sm >= 80"
[[launch]]
kernel = "row_sum"
grid   = "B"
block  = 32
---*/
#include "rung.cuh"
#include "ptx.cuh"

extern "C" __global__ void row_sum(const float* x, float* out, int N)
{
    __shared__ float buffer[2][32];
    const float* row = x + int64_t(blockIdx.x) * N;
    const int lane = threadIdx.x, chunks = ceil_div(N, 32);
    const auto copy = [&](int chunk) {
        const int n = chunk * 32 + lane;
        cp_async_4(&buffer[chunk % 2][lane], row + min(n, N - 1), n < N);  // zero where n is beyond the row
        cp_async_commit();
    };
    float sum = 0.0f;
    copy(0);
    for (int chunk = 0; chunk < chunks; chunk++) {
        copy(BLANK_1);  // beyond the last chunk it copies zeros
        cp_async_wait<BLANK_2>();
        sum += buffer[BLANK_3][lane];
    }
    cp_async_wait<0>();
    sum = warp_sum(sum);
    if (lane == 0) out[blockIdx.x] = sum;
}
