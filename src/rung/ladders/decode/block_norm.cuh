// The layer norm of a step for few sequences, by all computing threads of a block.
#pragma once
#include "stream.cuh"

namespace decode {

// The layer norm of B rows by the whole block: each thread keeps its elements; means and sums of squared deviations of the warps
// are merged, without the cancellation of a one-pass variance.
template <class W, int THREADS>
struct BlockNorm
{
    static constexpr int EACH = (C / 4 + THREADS - 1) / THREADS, WARPS = THREADS / 32;
    using At = Spread<W, C>;

    float4 gain[EACH], shift[EACH];

    __device__ __forceinline__ void request(const Real* g, const Real* s)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int f = threadIdx.x + THREADS * i;
            if (f < C / 4) gain[i] = four_floats(g + 4 * f), shift[i] = four_floats(s + 4 * f);
        }
    }

    // Elements of the row per warp.
    static __device__ __forceinline__ float held(int warp)
    {
        int count = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) count += max(0, min(WARP_SIZE, C / 4 - (warp * WARP_SIZE + THREADS * i)));
        return 4.0f * float(count);
    }

    template <class Load>
    __device__ __forceinline__ void run(float4* xs, float eps, Load load) const
    {
        __shared__ float means[B][WARPS], squares[B][WARPS];
        const int warp = warp_id();
        const float own = held(warp);
        float4 v[B][EACH];
#pragma unroll
        for (int b = 0; b < B; b++)
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int f = threadIdx.x + THREADS * i;
                v[b][i] = f < C / 4 ? load(b, f) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
#pragma unroll
        for (int b = 0; b < B; b++) {
            float sum = 0.0f, square = 0.0f;
#pragma unroll
            for (int i = 0; i < EACH; i++) sum += (v[b][i].x + v[b][i].y) + (v[b][i].z + v[b][i].w);
            const float mean = own > 0.0f ? warp_sum(sum) / own : 0.0f;
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (threadIdx.x + THREADS * i < C / 4)
                    square += (v[b][i].x - mean) * (v[b][i].x - mean) + (v[b][i].y - mean) * (v[b][i].y - mean) +
                              (v[b][i].z - mean) * (v[b][i].z - mean) + (v[b][i].w - mean) * (v[b][i].w - mean);
            square = warp_sum(square);
            if (lane_id() == 0) means[b][warp] = mean, squares[b][warp] = square;
        }
        sync_computing<THREADS>();
#pragma unroll
        for (int b = 0; b < B; b++) {
            float mean = 0.0f, square = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) mean += held(w) * means[b][w];
            mean /= C;
#pragma unroll
            for (int w = 0; w < WARPS; w++) square += squares[b][w] + held(w) * (means[b][w] - mean) * (means[b][w] - mean);
            const Norm norm = {mean, rsqrtf(square / C + eps)};
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int f = threadIdx.x + THREADS * i;
                if (f < C / 4) xs[b * At::FLOAT4S + At::slot(f)] = normalised(v[b][i], norm, gain[i], shift[i]);
            }
        }
        sync_computing<THREADS>();
    }
};

}  // namespace decode
