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
M_TILES = 1

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
#include "attention_mma.cuh"

constexpr float LN_2 = 0.6931471805599453f;

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
    Queries query;
    load_queries(query, Q);
    Output o = {};
    PerRow l = {}, m = {{-INFINITY, -INFINITY}};

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

        Scores s = {};
        multiply_scores(s, query, K_tile);
        if (key0 + BC > T || (causal && key0 + BC - 1 > warp_row0)) {  // this tile is partly masked
#pragma unroll
            for (int n = 0; n < BC / 8; n++) {
#pragma unroll
                for (int x = 0; x < 4; x++) {
                    int t1 = warp_row0 + lane / 4 + x / 2 * 8, t2 = key0 + n * 8 + lane % 4 * 2 + x % 2;
                    if (t2 >= T || (causal && t2 > t1)) s[0][n][x] = -INFINITY;
                }
            }
        }
        weigh_scores<false>(s, o, l, m, scale2);  // a share may hold no key that a row sees
#pragma unroll
        for (int kk = 0; kk < BC / 16; kk++) {
            uint32_t p[1][4];
            pack_weights(p, s, kk);
            multiply_values(o, p, V_tile, kk, lane);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        l[0][h] += __shfl_xor_sync(ALL_LANES, l[0][h], 1);
        l[0][h] += __shfl_xor_sync(ALL_LANES, l[0][h], 2);
        int t1 = warp_row0 + lane / 4 + h * 8;
        if (t1 >= T) continue;
        int64_t row = ((int64_t)blockIdx.z * gridDim.x + blockIdx.x) * T + t1;
#pragma unroll
        for (int n = 0; n < HS / 8; n++) {
            *reinterpret_cast<float2*>(&shares_o[row * HS + n * 8 + lane % 4 * 2]) =
                make_float2(o[0][n][2 * h], o[0][n][2 * h + 1]);
        }
        if (lane % 4 == 0) {
            shares_m[row] = m[0][h] * scale2;
            shares_l[row] = l[0][h];
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
