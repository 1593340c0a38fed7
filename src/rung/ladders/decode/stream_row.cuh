// The residual stream of many sequences: a block has a row, and computes its norm.
#pragma once
#include "decode.cuh"

namespace decode {

// A block's row of the stream, four elements per thread and round, with the norm's gain and shift.
struct StreamRow
{
    static constexpr int EACH = (C / 4 + ROW_THREADS - 1) / ROW_THREADS;

    float4 v[EACH], gain[EACH], shift[EACH];

    template <class Do>
    __device__ __forceinline__ void each(Do what)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (int(threadIdx.x) + ROW_THREADS * i < C / 4) what(i, int(threadIdx.x) + ROW_THREADS * i);
    }

    // No kernel writes weights, so these loads need not wait.
    __device__ __forceinline__ void request(const Real* gains, const Real* shifts)
    {
        each([&](int i, int f) { gain[i] = four_floats(gains + 4 * f), shift[i] = four_floats(shifts + 4 * f); });
    }

    // Elements of the row per warp.
    static __device__ __forceinline__ float held(int warp)
    {
        int count = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) count += max(0, min(WARP_SIZE, C / 4 - (warp * WARP_SIZE + ROW_THREADS * i)));
        return 4.0f * float(count);
    }

    // Merges the warps' means and deviations, without the cancellation of a one-pass variance: one barrier. Every warp has
    // elements of the row.
    __device__ __forceinline__ Norm norm(float eps)
    {
        constexpr int WARPS = ROW_THREADS / WARP_SIZE;
        __shared__ float2 parts[WARPS];
        float sum = 0.0f, squares = 0.0f, mean = 0.0f;
        each([&](int i, int) { sum += (v[i].x + v[i].y) + (v[i].z + v[i].w); });
        const float own = warp_sum(sum) / held(warp_id());
        each([&](int i, int) {
            const float4 d = make_float4(v[i].x - own, v[i].y - own, v[i].z - own, v[i].w - own);
            squares += (d.x * d.x + d.y * d.y) + (d.z * d.z + d.w * d.w);
        });
        squares = warp_sum(squares);
        if (lane_id() == 0) parts[warp_id()] = make_float2(own, squares);
        __syncthreads();
        squares = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) mean += held(w) / C * parts[w].x;
#pragma unroll
        for (int w = 0; w < WARPS; w++) squares += parts[w].y + held(w) * (parts[w].x - mean) * (parts[w].x - mean);
        return {mean, rsqrtf(squares / C + eps)};
    }

    // Stores the stream, and its layer norm as the next product's input.
    __device__ __forceinline__ void store(float* x, Real* n, float eps)
    {
        const int b = blockIdx.x;
        each([&](int i, int f) { reinterpret_cast<float4*>(x + size_t(b) * C)[f] = v[i]; });
        const Norm found = norm(eps);
        each([&](int i, int f) {
            const float4 out = normalised(v[i], found, gain[i], shift[i]);
            *reinterpret_cast<uint2*>(n + size_t(b) * C + 4 * f) =
                make_uint2(pack2<Real>(out.x, out.y), pack2<Real>(out.z, out.w));
        });
    }
};

}  // namespace decode
