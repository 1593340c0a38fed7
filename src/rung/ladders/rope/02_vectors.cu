/*---
idea   = "A thread turns the pairs of two vectors of 16 bytes, one from each half of a head (or two in a row, for neighbours), and keeps their cosines and sines in registers for all heads of its token."
expect = "The tables are read once per token instead of once per head, and 16 bytes per access keep enough bytes in flight: near copy speed for prompts."
found  = "3.1 us for b4t64 in f32 after 3.4: at this size the launch is most of it. Larger shapes were not measured."
dtypes = ["f32", "f16", "bf16"]
needs  = ["HS % (2 * (16 // sizeof_real)) == 0", "HS * sizeof_real <= 32 * BLOCK"]
[tune]
BLOCK = [128, 64, 256]
[define]
PER_HEAD = "HS // (2 * (16 // sizeof_real))"  # per head
[[launch]]
kernel = "rope"
grid   = ["T", "B"]
block  = "BLOCK"
---*/
#include "rung.cuh"

constexpr int HEADS = BLOCK / PER_HEAD;  // at once; threads beyond them are idle

extern "C" __global__ void __launch_bounds__(BLOCK)
    rope(const Real* __restrict__ x, const float* __restrict__ cosines, const float* __restrict__ sines, Real* __restrict__ out,
         int T, int NH, int HS, int interleaved)
{
    const int t = blockIdx.x, place = threadIdx.x % PER_HEAD, head = threadIdx.x / PER_HEAD;
    if (head >= HEADS) return;
    float cosine[VEC], sine[VEC];
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        const int64_t at = int64_t(t) * (HS / 2) + place * VEC + j;
        cosine[j] = cosines[at];
        sine[j] = sines[at];
    }
    const int first = interleaved ? 2 * place * VEC : place * VEC, second = interleaved ? first + VEC : first + HS / 2;
    for (int nh = head; nh < NH; nh += HEADS) {
        const int64_t row = ((int64_t(blockIdx.y) * T + t) * NH + nh) * HS;
        Vec16<Real> both[2] = {load_vec(x + row + first), load_vec(x + row + second)};
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            Real& low = interleaved ? both[2 * j / VEC][2 * j % VEC] : both[0][j];
            Real& high = interleaved ? both[2 * j / VEC][2 * j % VEC + 1] : both[1][j];
            const float a = to_float(low), b = to_float(high);
            low = from_float<Real>(a * cosine[j] - b * sine[j]);
            high = from_float<Real>(b * cosine[j] + a * sine[j]);
        }
        store_vec(out + row + first, both[0]);
        store_vec(out + row + second, both[1]);
    }
}
