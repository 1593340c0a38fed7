/*---
idea   = "The tensor cores compute both products: one warp per block, 16x16 outputs at a time, fragments of TF32 loaded straight from global memory."
expect = "A quarter of the instructions, and multiplication almost free; what remains is the traffic of the scores and of fragments that no warps share."
found  = "1.30 ms at b8t1024 in tf32 on an H200, slower than rung 9 without tensor cores (1.06 ms), torch (1.07 ms) and cuBLAS (485 us): unshared fragments cost what the multiplications save. At b4t64 22.5 us, 1.25x torch's speed. On an A40 the report had it ahead of cuBLAS; over rung 2 in f32 it is 752x there, where the report gives over 60x."
provenance = "ECE 408 GPT-2 report, milestone 2: WMMA 16x16x8 for both products, over 60x the badly launched baseline and ahead of cuBLAS on an A40."
from   = "attention/6"
dtypes = ["tf32"]
needs  = "HS % 16 == 0 and sm >= 80"

# T rounded up to whole tiles: TP in the comments below
buffers.qh     = { shape = ["B", "NH", "round_up(T, 16)", "HS"], dtype = "f32" }
buffers.kh     = { shape = ["B", "NH", "round_up(T, 16)", "HS"], dtype = "f32" }
buffers.vh     = { shape = ["B", "NH", "round_up(T, 16)", "HS"], dtype = "f32" }
buffers.oh     = { shape = ["B", "NH", "round_up(T, 16)", "HS"], dtype = "f32" }
buffers.scores = { shape = ["B", "NH", "round_up(T, 16)", "round_up(T, 16)"], dtype = "f32" }
bind           = { TP = "round_up(T, 16)" }

[tune]
BLOCK = [256, 128, 512]

[[launch]]
kernel = "permute"
grid   = "ceil_div(B * C * round_up(T, 16), 256)"
block  = 256

[[launch]]
kernel = "query_key"
grid   = ["ceil_div(T, 16)", "ceil_div(T, 16)", "B * NH"]
block  = 32

[[launch]]
kernel = "softmax"
grid   = ["T", "B * NH"]
block  = "BLOCK"

[[launch]]
kernel = "attend_value"
grid   = ["HS // 16", "ceil_div(T, 16)", "B * NH"]
block  = 32

[[launch]]
kernel = "unpermute"
grid   = "ceil_div(B * T * C, 256)"
block  = 256
[model]
serves = { naive = 2, reduction = 2, tiled = 2, tensorcore = 1 }
---*/
#include "rung.cuh"

#include <mma.h>

using namespace nvcuda;

constexpr int TILE = 16, DEPTH = 8;  // m16n16k8

template <class Fragment>
__device__ void round_to_tf32(Fragment& fragment)
{
    for (int i = 0; i < fragment.num_elements; i++) fragment.x[i] = wmma::__float_to_tf32(fragment.x[i]);
}

// qkv (B, T, 3, NH, HS) -> qh, kh, vh (B, NH, TP, HS), zeros beyond the last token
extern "C" __global__ void permute(const float* qkv, float* qh, float* kh, float* vh, int B, int T, int C, int NH, int HS, int TP)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= B * TP * C) return;
    int hs = i % HS, t = i / HS % TP, nh = i / HS / TP % NH, b = i / HS / TP / NH;
    const float* token = qkv + ((int64_t)b * T + t) * 3 * C + nh * HS + hs;
    qh[i] = t < T ? token[0] : 0.0f;
    kh[i] = t < T ? token[C] : 0.0f;
    vh[i] = t < T ? token[2 * C] : 0.0f;
}

// scores (B, NH, TP, TP) = qh @ kh^T, where a tile holds anything that the mask leaves
extern "C" __global__ void query_key(const float* qh, const float* kh, float* scores, int HS, int TP, int causal)
{
    int row0 = blockIdx.y * TILE, key0 = blockIdx.x * TILE;
    if (causal && key0 > row0) return;
    int64_t head = (int64_t)blockIdx.z * TP;
    wmma::fragment<wmma::accumulator, TILE, TILE, DEPTH, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int hs = 0; hs < HS; hs += DEPTH) {
        wmma::fragment<wmma::matrix_a, TILE, TILE, DEPTH, wmma::precision::tf32, wmma::row_major> a;
        wmma::fragment<wmma::matrix_b, TILE, TILE, DEPTH, wmma::precision::tf32, wmma::col_major> b;
        wmma::load_matrix_sync(a, qh + (head + row0) * HS + hs, HS);
        wmma::load_matrix_sync(b, kh + (head + key0) * HS + hs, HS);
        round_to_tf32(a);
        round_to_tf32(b);
        wmma::mma_sync(sum, a, b, sum);
    }
    wmma::store_matrix_sync(scores + (head + row0) * TP + key0, sum, TP, wmma::mem_row_major);
}

// In place, one block per row; zeros from the row's last key to the end of its tile.
extern "C" __global__ void softmax(float* scores, int T, int TP, float scale, int causal)
{
    int t1 = blockIdx.x;
    float* x = scores + ((int64_t)blockIdx.y * TP + t1) * TP;
    int end = causal ? t1 + 1 : T;
    float largest = -INFINITY;
    for (int t2 = threadIdx.x; t2 < end; t2 += BLOCK) largest = fmaxf(largest, x[t2]);
    largest = block_max(largest);
    float sum = 0.0f;
    for (int t2 = threadIdx.x; t2 < end; t2 += BLOCK) {
        x[t2] = expf(scale * (x[t2] - largest));
        sum += x[t2];
    }
    sum = block_sum(sum);
    int whole = ceil_div(end, TILE) * TILE;
    for (int t2 = threadIdx.x; t2 < whole; t2 += BLOCK) x[t2] = t2 < end ? x[t2] / sum : 0.0f;
}

// oh (B, NH, TP, HS) = scores @ vh
extern "C" __global__ void attend_value(const float* scores, const float* vh, float* oh, int HS, int TP, int causal)
{
    int row0 = blockIdx.y * TILE, hs = blockIdx.x * TILE;
    int64_t head = (int64_t)blockIdx.z * TP;
    int end = causal ? row0 + TILE : TP;
    wmma::fragment<wmma::accumulator, TILE, TILE, DEPTH, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int t2 = 0; t2 < end; t2 += DEPTH) {
        wmma::fragment<wmma::matrix_a, TILE, TILE, DEPTH, wmma::precision::tf32, wmma::row_major> a;
        wmma::fragment<wmma::matrix_b, TILE, TILE, DEPTH, wmma::precision::tf32, wmma::row_major> b;
        wmma::load_matrix_sync(a, scores + (head + row0) * TP + t2, TP);
        wmma::load_matrix_sync(b, vh + (head + t2) * HS + hs, HS);
        round_to_tf32(a);
        round_to_tf32(b);
        wmma::mma_sync(sum, a, b, sum);
    }
    wmma::store_matrix_sync(oh + (head + row0) * HS + hs, sum, HS, wmma::mem_row_major);
}

// oh (B, NH, TP, HS) -> out (B, T, NH, HS)
extern "C" __global__ void unpermute(const float* oh, float* out, int B, int T, int C, int NH, int HS, int TP)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= B * T * C) return;
    int hs = i % HS, nh = i / HS % NH, t = i / HS / NH % T, b = i / HS / NH / T;
    out[i] = oh[(((int64_t)b * NH + nh) * TP + t) * HS + hs];
}
