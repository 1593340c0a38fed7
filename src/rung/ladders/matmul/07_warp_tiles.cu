/*---
idea   = "A level between block and thread: each warp has a tile of 64 x 32 with its lanes arranged 8 x 4, so that a warp reads few distinct numbers and the lanes share them by broadcast."
expect = "A warp's two vector loads touch 128 and 64 distinct bytes, one pass each, where the second took two passes before: a third less traffic from shared memory."
found  = "Slower: 1.03 -> 1.05 ms (0.98x) at 8192 x 768 x 3072 in f32 on an H200, 157 -> 172 us (0.91x) for 256 rows, and in bf16 a tie (0.99x) and 0.92x. A third less shared-memory traffic gained no time."
provenance = "common practice for f32 matmul, the hierarchy that tensor-core kernels keep; ours"
dtypes = ["f32", "f16", "bf16"]
needs  = ["BM % 64 == 0 and BN % 32 == 0", "BK % (16 // sizeof_real) == 0", "(BM * BK * sizeof_real // 16) % ((BM // 8) * (BN // 8)) == 0", "(BN * BK * sizeof_real // 16) % ((BM // 8) * (BN // 8)) == 0"]
[tune]
BM = [128, 64]
BN = [128, 64]
BK = [16, 32, 8]
[bind]
M = "B * T"
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, BN)", "ceil_div(B * T, BM)"]
block  = "(BM // 8) * (BN // 8)"
---*/
#include "rung.cuh"

constexpr int WM = 64, WN = 32;  // a warp's tile: 8 x 4 lanes of 8 x 8 outputs
constexpr int THREADS = (BM / WM) * (BN / WN) * WARP_SIZE;
constexpr int PAD = 4;

// A vector of row `row`, from column `c` on; zeros beyond the matrix, element by element where rows are not aligned.
__device__ __forceinline__ Vec16<Real> fetch(const Real* matrix, int row, int rows, int c, int C)
{
    const Real* source = matrix + size_t(row) * C + c;
    Vec16<Real> v;
    if (C % VEC == 0 && row < rows && c < C) return load_vec(source);
#pragma unroll
    for (int j = 0; j < VEC; j++) v[j] = row < rows && c + j < C ? source[j] : from_float<Real>(0.0f);
    return v;
}

template <int ROWS>
__device__ __forceinline__ void copy_transposed(float (&tile)[BK][ROWS + PAD], const Real* matrix, int r0, int rows, int c0,
                                                int C)
{
    constexpr int PER_ROW = BK / VEC;
#pragma unroll
    for (int i = 0; i < ROWS * PER_ROW / THREADS; i++) {
        const int index = threadIdx.x + i * THREADS;
        const int r = index / PER_ROW, k = index % PER_ROW * VEC;
        const Vec16<Real> v = fetch(matrix, r0 + r, rows, c0 + k, C);
#pragma unroll
        for (int j = 0; j < VEC; j++) tile[k + j][r] = to_float(v[j]);
    }
}

__device__ __forceinline__ void read_eight(float (&to)[8], const float* low, const float* high)
{
    const Vec16<float> a = load_vec(low), b = load_vec(high);
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = a[i], to[i + 4] = b[i];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul(const Real* x, const Real* weight, const Real* bias, Real* out, int M, int OC, int C)
{
    __shared__ __align__(16) float x_tile[BK][BM + PAD];
    __shared__ __align__(16) float w_tile[BK][BN + PAD];

    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    // Four neighbouring rows from ty on and four more WM / 2 below; columns likewise.
    const int ty = warp / (BN / WN) * WM + lane / 4 * 4, tx = warp % (BN / WN) * WN + lane % 4 * 4;

    float sum[8][8] = {};
    for (int c0 = 0; c0 < C; c0 += BK) {
        copy_transposed<BM>(x_tile, x, m0, M, c0, C);
        copy_transposed<BN>(w_tile, weight, n0, OC, c0, C);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK; k++) {
            float a[8], b[8];
            read_eight(a, &x_tile[k][ty], &x_tile[k][ty + WM / 2]);
            read_eight(b, &w_tile[k][tx], &w_tile[k][tx + WN / 2]);
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) sum[i][j] += a[i] * b[j];
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int row = m0 + ty + i % 4 + i / 4 * (WM / 2);
        if (row >= M) continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int col = n0 + tx + half * (WN / 2);
            Vec<Real, 4> v;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float b = bias && col + j < OC ? to_float(bias[col + j]) : 0.0f;
                v[j] = from_float<Real>(sum[i][half * 4 + j] + b);
            }
            Real* target = out + size_t(row) * OC + col;
            if (OC % 4 == 0 && col < OC) {
                *reinterpret_cast<Vec<Real, 4>*>(target) = v;
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (col + j < OC) target[j] = v[j];
            }
        }
    }
}
