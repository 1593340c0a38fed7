// The residual stream, which every block receives completely, and its norm.
#pragma once
#include "one_kernel_layout.cuh"

namespace decode {

constexpr int HELD = ceil_div(C / 3 + MOST_BLOCKS, THREADS);  // packets of a vector of C per thread

struct ResidualVector
{
    float v[HELD][3];
    PacketSpan spans[HELD];
    float running_mean = 0.0f;  // the mean of the last vector: deviations from it are squared and summed without cancellation

    __device__ __forceinline__ void look_up(const Mailbox<3>& shared)
    {
#pragma unroll
        for (int i = 0; i < HELD; i++) spans[i] = PacketSpan::of(shared, int(threadIdx.x) + i * THREADS);
    }

    __device__ __forceinline__ void receive_from(const Packet* packets, int packet_count, uint32_t epoch)
    {
        Packet got[HELD];
        const int thread = opaque(threadIdx.x);
        receive(got, epoch, [&](int i) {
            return packets + min(thread + i * THREADS, packet_count - 1);
        });  // surplus threads read the last packet again
#pragma unroll
        for (int i = 0; i < HELD; i++)
#pragma unroll
            for (int j = 0; j < 3; j++) v[i][j] = __uint_as_float(got[i].word[j]);
    }

    __device__ __forceinline__ void embed(const Real* token, const Real* position)
    {
#pragma unroll
        for (int i = 0; i < HELD; i++)
#pragma unroll
            for (int j = 0; j < 3; j++) {
                const int channel = min(spans[i].first() + j, C - 1);
                v[i][j] = to_float(token[channel]) + to_float(position[channel]);
            }
    }

    // Writes the vector's layer norm for the products.
    __device__ __forceinline__ void normalise(const Vector& to, const Real* gain, const Real* shift, float eps)
    {
        __shared__ float2 sums[STEP_WARPS];
        float sum = 0.0f, square = 0.0f;
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int count = spans[i].renewed().count();
#pragma unroll
            for (int j = 0; j < 3; j++) {
                v[i][j] -= running_mean;
                const float own = j < count ? v[i][j] : 0.0f;
                sum += own, square += own * own;
            }
        }
        sum = warp_sum(sum), square = warp_sum(square);
        if (lane_id() == 0) sums[warp_id()] = make_float2(sum, square);
        sync_computing();
        sum = square = 0.0f;
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++) sum += sums[w].x, square += sums[w].y;
        const float mean = sum / C, rstd = rsqrtf(fmaxf(square / C - mean * mean, 0.0f) + eps);
        running_mean += mean;
        float g[HELD][3], b[HELD][3];  // loaded together: with branches each load would be waited for separately
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const PacketSpan span = spans[i].renewed();
#pragma unroll
            for (int j = 0; j < 3; j++) {
                const int channel = min(span.first() + j, C - 1);
                g[i][j] = to_float(gain[channel]), b[i][j] = to_float(shift[channel]);
            }
        }
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const PacketSpan span = spans[i].renewed();
#pragma unroll
            for (int j = 0; j < 3; j++) {
                const float x = (v[i][j] - mean) * rstd * g[i][j] + b[i][j];
                if (j < span.count()) to.set(span.first() + j, x);
            }
        }
    }
};

}  // namespace decode
