// Data exchange between blocks with a grid barrier between writing and reading.
#pragma once
#include <cooperative_groups.h>
#include "mailboxes.cuh"

namespace decode {

__device__ __forceinline__ void send(Packet* to, uint32_t a, uint32_t b, uint32_t c, uint32_t epoch)
{
    __stcg(reinterpret_cast<uint4*>(to), make_uint4(a, b, c, epoch));
}

// Packet i of N is at from(i); those that are not needed are not read.
template <int N, class From, class Wanted>
__device__ __forceinline__ void receive(Packet (&got)[N], uint32_t epoch, From from, Wanted wanted)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        got[i] = {{0, 0, 0}, epoch};
        if (wanted(i)) {
            const uint4 bits = __ldcg(reinterpret_cast<const uint4*>(from(i)));
            got[i] = {{bits.x, bits.y, bits.z}, bits.w};
        }
    }
}

template <int N, class From>
__device__ __forceinline__ void receive(Packet (&got)[N], uint32_t epoch, From from)
{
    receive(got, epoch, from, [](int) { return true; });
}

// After this call a thread may read what all others have sent.
__device__ __forceinline__ void all_have_sent() { cooperative_groups::this_grid().sync(); }

// No thread polls before the barrier, so no delay is needed.
__device__ __forceinline__ void delay_polling(int) {}

}  // namespace decode
