/*---
idea   = "Flash attention in eight bits: both products are mma.sync of e4m3, 16 x 8 x 32. P, which 3 bits of mantissa would round too coarsely, is the sum of two e4m3 numbers and is multiplied twice."
expect = "S takes half the instructions of 16 bits, PV as many; K and V are half the bytes. On Hopper mma.sync has no more than f16's rate in e4m3, so little is gained over rung attention/27; the format's full rate is wgmma's, with P in one number as flash attention 3 has it, at an error of per cents."
found  = "279 us for b8t1024 in bf16, 2.44 ms for 8,192 tokens; torch in bf16, with the decoding left out, takes 207 and 555 us: without wgmma for 8 bits the format saves no time."
provenance = "ECE 408 GPT-2 report, milestone 3, conclusion: flash attention 3, whose second half is FP8; layouts from the PTX manual. V is transposed into shared memory with its keys in the order of the score fragments, so that P needs no exchange between lanes."
dtypes = ["bf16", "f16"]
products = "e4m3"
needs  = ["sm >= 89", "HS % 32 == 0", "HS <= 128", "scale > 0"]
align  = 16
[define]
HS = "C // NH"
[[launch]]
kernel = "flash"
grid   = ["ceil_div(T, 64)", "NH", "B"]
block  = 128
---*/
#include "rung.cuh"

constexpr int WARPS = 4, BR = 16 * WARPS, BC = 64;
constexpr int K_ROW = HS + 16, V_ROW = BC + 16;  // bytes: eight rows begin in different banks
constexpr float UNIT = 256.0f;                   // the largest weight as an e4m3 number

__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A number from 0 to 448 as e4m3, rounded to nearest even.
__device__ __forceinline__ uint32_t to_e4m3(float x)
{
    if (x < 0.015625f) return uint32_t(__float2int_rn(x * 512.0f));  // subnormal: units of 2^-9
    uint32_t bits = __float_as_uint(x);
    bits += 0x7ffffu + (bits >> 20 & 1u);
    return (bits >> 20) - (120u << 3);
}

__device__ __forceinline__ float from_e4m3(uint32_t code)
{
    return code < 8 ? float(code) * 0.001953125f : __uint_as_float((code + (120u << 3)) << 20);
}

// Where a key stands among its 16, so that a lane's scores of two tiles are four neighbours.
__device__ __forceinline__ int place_of(int key) { return key / 16 * 16 + key % 8 / 2 * 4 + key / 8 % 2 * 2 + key % 2; }

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    flash(const uint8_t* q_f8, const uint8_t* k_f8, const uint8_t* v_f8, const float* q_scale, const float* k_scale,
          const float* v_scale, Real* out, int T, int NH, float scale)
{
    __shared__ __align__(16) uint8_t K[BC][K_ROW];
    __shared__ __align__(16) uint8_t V[HS][V_ROW];  // transposed
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, nh = blockIdx.y, b = blockIdx.z;
    const int row0 = blockIdx.x * BR, row = row0 + warp * 16 + lane / 4, head = b * NH + nh;
    const int64_t at = (int64_t)head * T * HS;
    const float to_score = scale * q_scale[head] * k_scale[head];

    uint32_t query[HS / 32][4];
#pragma unroll
    for (int kk = 0; kk < HS / 32; kk++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = min(row + i % 2 * 8, T - 1);
            query[kk][i] = *reinterpret_cast<const uint32_t*>(q_f8 + at + (int64_t)r * HS + kk * 32 + i / 2 * 16 + lane % 4 * 4);
        }
    }

    float o[HS / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {};
    for (int key0 = 0; key0 < min(T, row0 + BR); key0 += BC) {
        __syncthreads();
        for (int i = threadIdx.x; i < BC * HS / 4; i += 32 * WARPS) {
            const int key = i / (HS / 4), d = i % (HS / 4) * 4;
            const bool inside = key0 + key < T;
            const int64_t from = at + (int64_t)(key0 + key) * HS + d;
            *reinterpret_cast<uint32_t*>(&K[key][d]) = inside ? *reinterpret_cast<const uint32_t*>(k_f8 + from) : 0u;
            const uint32_t four = inside ? *reinterpret_cast<const uint32_t*>(v_f8 + from) : 0u;
#pragma unroll
            for (int j = 0; j < 4; j++) V[d + j][place_of(key)] = uint8_t(four >> 8 * j);
        }
        __syncthreads();

        float s[BC / 8][4] = {};
#pragma unroll
        for (int n = 0; n < BC / 8; n++) {
#pragma unroll
            for (int kk = 0; kk < HS / 32; kk++) {
                const uint8_t* from = &K[n * 8 + lane / 4][kk * 32 + lane % 4 * 4];
                multiply(s[n], query[kk], *reinterpret_cast<const uint32_t*>(from),
                         *reinterpret_cast<const uint32_t*>(from + 16));
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {  // rows lane / 4 and lane / 4 + 8
            float largest = m[h];
#pragma unroll
            for (int n = 0; n < BC / 8; n++) {
#pragma unroll
                for (int x = 2 * h; x < 2 * h + 2; x++) {
                    const int key = key0 + n * 8 + lane % 4 * 2 + x % 2;
                    s[n][x] = key < T && key <= row + h * 8 ? s[n][x] * to_score : -INFINITY;
                    largest = fmaxf(largest, s[n][x]);
                }
            }
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
            const float shrink = expf(m[h] - largest);  // every row sees key 0 in the first tile
            m[h] = largest;
            l[h] *= shrink;
#pragma unroll
            for (int n = 0; n < BC / 8; n++) {
#pragma unroll
                for (int x = 2 * h; x < 2 * h + 2; x++) {
                    s[n][x] = expf(s[n][x] - largest);
                    l[h] += s[n][x];
                }
            }
#pragma unroll
            for (int n = 0; n < HS / 8; n++) {
                o[n][2 * h] *= shrink;
                o[n][2 * h + 1] *= shrink;
            }
        }
#pragma unroll
        for (int kk = 0; kk < BC / 32; kk++) {
            uint32_t coarse[4], rest[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                coarse[i] = rest[i] = 0u;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float p = UNIT * s[kk * 4 + i / 2 * 2 + j / 2][i % 2 * 2 + j % 2];
                    const uint32_t code = to_e4m3(p);
                    const float left = p - from_e4m3(code);
                    coarse[i] |= code << 8 * j;
                    rest[i] |= (to_e4m3(fabsf(left)) | (left < 0.0f ? 0x80u : 0u)) << 8 * j;
                }
            }
#pragma unroll
            for (int n = 0; n < HS / 8; n++) {
                const uint8_t* from = &V[n * 8 + lane / 4][kk * 32 + lane % 4 * 4];
                const uint32_t b0 = *reinterpret_cast<const uint32_t*>(from), b1 = *reinterpret_cast<const uint32_t*>(from + 16);
                multiply(o[n], coarse, b0, b1);
                multiply(o[n], rest, b0, b1);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        l[h] += __shfl_xor_sync(ALL_LANES, l[h], 1);
        l[h] += __shfl_xor_sync(ALL_LANES, l[h], 2);
        if (row + h * 8 >= T) continue;
        Real* to = out + (((int64_t)b * T + row + h * 8) * NH + nh) * HS + lane % 4 * 2;
        const float factor = v_scale[head] / (l[h] * UNIT);
#pragma unroll
        for (int n = 0; n < HS / 8; n++) {
            to[n * 8] = from_float<Real>(o[n][2 * h] * factor);
            to[n * 8 + 1] = from_float<Real>(o[n][2 * h + 1] * factor);
        }
    }
}
