/*---
idea   = "Keys are divided among blocks too: each of SPLITS blocks computes a share of a row's keys and writes its O, m and l; a second kernel merges the shares."
expect = "With fewer query tiles than multiprocessors (one head of 8192, a batch of one) several times faster than rung 27; with many, slower by the traffic of the shares."
found  = "With many tiles it halves the speed, as expected: 57.8 -> 123 us (0.47x) at b8t1024 in bf16 on an H200; 4.26 -> 6.41 us (0.66x) at b4t64."
provenance = "Flash-Decoding, by the authors of FlashAttention; the merge is the running softmax's own step."
dtypes = ["f16", "bf16"]
needs  = ["sm >= 80", "HS % 16 == 0", "HS <= 128", "scale > 0", "q_stride_T % 8 == 0"]
options = ["--use_fast_math"]

# q, k and v are views of one qkv and share their strides
bind = { stride_B = "q_stride_B", stride_NH = "q_stride_NH", stride_T = "q_stride_T" }
# each share's outputs without denominator, maxima (times scale, as a power of two) and sums
buffers.shares_o = { shape = ["SPLITS", "B", "NH", "T", "HS"], dtype = "f32" }
buffers.shares_m = { shape = ["SPLITS", "B", "NH", "T"], dtype = "f32" }
buffers.shares_l = { shape = ["SPLITS", "B", "NH", "T"], dtype = "f32" }

[define]
HS = "C // NH"

[tune]
SPLITS = [4, 2, 8, 16]
WARPS  = [4, 2]
BC     = [64, 32]
STAGES = [2, 3]

[[launch]]
kernel = "flash"
grid   = ["B * NH", "ceil_div(T, 16 * WARPS)", "SPLITS"]
block  = "32 * WARPS"
shared = "(2 * HS if HS % 64 == 0 or HS == 32 else 2 * HS + 16) * (16 * WARPS + 2 * STAGES * BC)"

[[launch]]
kernel = "merge"
grid   = "ceil_div(B * NH * T * HS // 4, 256)"
block  = 256
---*/
#include "rung.cuh"

constexpr int BR = 16 * WARPS;
constexpr int CHUNKS = HS / 8;  // of 16 bytes in a row
constexpr bool SWIZZLED = CHUNKS % 8 == 0 || CHUNKS == 4;
constexpr int ROW = 8 * (SWIZZLED ? CHUNKS : CHUNKS + 1);  // an odd number of chunks per row needs no swizzle
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

// Where a chunk of a row lies in a tile: the same column's chunks of eight consecutive rows cover all 32 banks.
__device__ __forceinline__ int chunk_at(unsigned row, unsigned chunk)
{
    if (CHUNKS % 8 == 0) chunk ^= row % 8;
    if (CHUNKS == 4) chunk ^= row / 2 % 4;
    return row * ROW + chunk * 8;
}

// Starts copying COUNT rows of HS numbers into shared memory; zeros beyond the last token.
template <int COUNT>
__device__ __forceinline__ void load_tile(Real* tile, const Real* rows, int row_stride, int tokens)
{
#pragma unroll
    for (unsigned i = 0; i < COUNT * CHUNKS; i += 32 * WARPS) {
        unsigned row = (i + threadIdx.x) / CHUNKS, chunk = (i + threadIdx.x) % CHUNKS;
        if (COUNT * CHUNKS % (32 * WARPS) != 0 && row >= COUNT) break;
        bool valid = (int)row < tokens;
        cp_async_16(tile + chunk_at(row, chunk), rows + (valid ? (int)row * row_stride : 0) + chunk * 8, valid);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    flash(const Real* __restrict__ q, const Real* __restrict__ k, const Real* __restrict__ v, float* __restrict__ shares_o,
          float* __restrict__ shares_m, float* __restrict__ shares_l, int T, int NH, int stride_B, int stride_NH, int stride_T,
          float scale, int causal)
{
    extern __shared__ __align__(16) unsigned char shared[];
    Real* Q = reinterpret_cast<Real*>(shared);  // (BR, ROW)
    Real* K = Q + BR * ROW;                     // (STAGES, BC, ROW)
    Real* V = K + STAGES * BC * ROW;            // (STAGES, BC, ROW)
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int b = blockIdx.x / NH, nh = blockIdx.x % NH;
    int row0 = (gridDim.y - 1 - blockIdx.y) * BR;  // the rows with the most keys first
    int warp_row0 = row0 + warp * 16;
    int64_t head = (int64_t)b * stride_B + nh * stride_NH;
    const Real *keys = k + head, *values = v + head;
    int all_tiles = ceil_div(causal ? min(T, row0 + BR) : T, BC), share = ceil_div(all_tiles, SPLITS);
    int first = blockIdx.z * share, tiles = min(all_tiles, first + share);  // this block's tiles: first ... tiles - 1
    float scale2 = scale * LOG2_E;                                          // exp(scale x) = 2^(scale2 x)

    load_tile<BR>(Q, q + head + (int64_t)row0 * stride_T, stride_T, T - row0);
    cp_async_commit();
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        int tile = first + stage;
        if (tile < tiles) {
            int64_t at = (int64_t)tile * BC * stride_T;
            load_tile<BC>(K + tile % STAGES * BC * ROW, keys + at, stride_T, T - tile * BC);
            load_tile<BC>(V + tile % STAGES * BC * ROW, values + at, stride_T, T - tile * BC);
        }
        cp_async_commit();
    }
    cp_async_wait<STAGES - 1>();
    __syncthreads();
    uint32_t query[HS / 16][4];
#pragma unroll
    for (int kk = 0; kk < HS / 16; kk++) {
        ldmatrix_x4(query[kk], Q + chunk_at(warp * 16 + lane % 16, 2 * kk + lane / 16));
    }

    // Of each 16 x 8 tile a lane has rows lane / 4 and lane / 4 + 8, columns 2 * (lane % 4) and the next. l counts
    // those columns alone; the four lanes of a row are added at the end.
    float o[HS / 8][4] = {}, l[2] = {}, m[2] = {-INFINITY, -INFINITY};

    for (int tile = first; tile < tiles; tile++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this tile has arrived, and every warp has read the one before
        int next = tile + STAGES - 1, key0 = tile * BC;
        if (next < tiles) {
            int64_t at = (int64_t)next * BC * stride_T;
            load_tile<BC>(K + next % STAGES * BC * ROW, keys + at, stride_T, T - next * BC);
            load_tile<BC>(V + next % STAGES * BC * ROW, values + at, stride_T, T - next * BC);
        }
        cp_async_commit();
        // perhaps never true: a block of queries may be no longer than one of keys
        if (causal && key0 >= warp_row0 + 16) continue;  // all masked for this warp
        const Real* K_tile = K + tile % STAGES * BC * ROW;
        const Real* V_tile = V + tile % STAGES * BC * ROW;

        float s[BC / 8][4] = {};
#pragma unroll
        for (int kk = 0; kk < HS / 16; kk++) {
#pragma unroll
            for (int n = 0; n < BC / 16; n++) {
                uint32_t key[4];
                ldmatrix_x4(key, K_tile + chunk_at(n * 16 + lane / 16 * 8 + lane % 8, 2 * kk + lane / 8 % 2));
                mma_m16n8k16<Real>(s[2 * n], query[kk], {key[0], key[1]});
                mma_m16n8k16<Real>(s[2 * n + 1], query[kk], {key[2], key[3]});
            }
        }
        if (key0 + BC > T || (causal && key0 + BC - 1 > warp_row0)) {  // this tile is partly masked
#pragma unroll
            for (int n = 0; n < BC / 8; n++) {
#pragma unroll
                for (int x = 0; x < 4; x++) {
                    int t1 = warp_row0 + lane / 4 + x / 2 * 8, t2 = key0 + n * 8 + lane % 4 * 2 + x % 2;
                    if (t2 >= T || (causal && t2 > t1)) s[n][x] = -INFINITY;
                }
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {  // rows lane / 4 and lane / 4 + 8
            float largest = m[h];
#pragma unroll
            for (int n = 0; n < BC / 8; n++) largest = fmaxf(largest, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
            float from = largest == -INFINITY ? 0.0f : largest;  // a share may hold no key that this row sees
            float shrink = exp2f((m[h] - from) * scale2);
            m[h] = largest;
            l[h] *= shrink;
#pragma unroll
            for (int n = 0; n < BC / 8; n++) {
#pragma unroll
                for (int x = 2 * h; x < 2 * h + 2; x++) {
                    s[n][x] = exp2f(fmaf(s[n][x], scale2, -from * scale2));
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
        for (int kk = 0; kk < BC / 16; kk++) {
            uint32_t p[4];  // two neighbouring tiles of S have the layout of one operand
#pragma unroll
            for (int x = 0; x < 4; x++) {
                const float* pair = &s[2 * kk + x / 2][x % 2 * 2];
                p[x] = pack2<Real>(pair[0], pair[1]);
            }
#pragma unroll
            for (int n = 0; n < HS / 16; n++) {
                uint32_t value[4];
                ldmatrix_x4_trans(value, V_tile + chunk_at(kk * 16 + lane % 16, 2 * n + lane / 16));
                mma_m16n8k16<Real>(o[2 * n], p, {value[0], value[1]});
                mma_m16n8k16<Real>(o[2 * n + 1], p, {value[2], value[3]});
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        l[h] += __shfl_xor_sync(ALL_LANES, l[h], 1);
        l[h] += __shfl_xor_sync(ALL_LANES, l[h], 2);
        int t1 = warp_row0 + lane / 4 + h * 8;
        if (t1 >= T) continue;
        int64_t row = ((int64_t)blockIdx.z * gridDim.x + blockIdx.x) * T + t1;
#pragma unroll
        for (int n = 0; n < HS / 8; n++) {
            *reinterpret_cast<float2*>(&shares_o[row * HS + n * 8 + lane % 4 * 2]) = make_float2(o[n][2 * h], o[n][2 * h + 1]);
        }
        if (lane % 4 == 0) {
            shares_m[row] = m[h] * scale2;
            shares_l[row] = l[h];
        }
    }
}

// One thread computes four neighbouring outputs.
extern "C" __global__ void merge(const float* __restrict__ shares_o, const float* __restrict__ shares_m,
                                 const float* __restrict__ shares_l, Real* __restrict__ out, float* __restrict__ lse, int B,
                                 int T, int NH)
{
    int rows = B * NH * T, i = blockIdx.x * blockDim.x + threadIdx.x, row = i / (HS / 4), hs = i % (HS / 4) * 4;
    if (row >= rows) return;
    float m = -INFINITY, l = 0.0f, o[4] = {};
#pragma unroll
    for (int split = 0; split < SPLITS; split++) m = fmaxf(m, shares_m[(int64_t)split * rows + row]);
#pragma unroll
    for (int split = 0; split < SPLITS; split++) {
        int64_t at = (int64_t)split * rows + row;
        float weight = exp2f(shares_m[at] - m);
        l += weight * shares_l[at];
        Vec<float, 4> share = load_vec(&shares_o[at * HS + hs]);
#pragma unroll
        for (int x = 0; x < 4; x++) o[x] += weight * share[x];
    }
    int t = row % T, nh = row / T % NH, b = row / T / NH;
    Vec<Real, 4> result;
#pragma unroll
    for (int x = 0; x < 4; x++) result[x] = from_float<Real>(o[x] / l);
    *reinterpret_cast<Vec<Real, 4>*>(&out[(((int64_t)b * T + t) * NH + nh) * HS + hs]) = result;
    if (lse != nullptr && hs == 0) lse[row] = m * LN_2 + logf(l);
}
