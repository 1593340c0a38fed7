/*---
idea   = "A pipeline for the tensor cores: cp.async fills three stages of shared memory ahead of use, an XOR swizzle keeps ldmatrix free of bank conflicts, and mma.sync computes 64 x 64 per warp from fragments loaded one step early."
expect = "From a tenth to over half of cuBLAS in bf16 at 4096 x 768 x 3072: each value loaded from global memory is now used for 128 outputs and no warp waits for it. mma.sync reaches about 60 % of what wgmma can do on this GPU."
found  = "1.54 ms -> 218 us (7.06x) at 8192 x 768 x 3072 in tf32 on an H200, and 77.1 -> 21.8 us (3.54x) for 256 rows. In bf16 117 us, 331 TFLOP/s, 42 % of the measured rate and 0.51x cublasLt's speed: just over half, as expected. Over the vocabulary, whose odd width slows cublasLt, 110 us and 2.01x; for 256 rows 0.37x."
provenance = "ours; the structure of CUTLASS's kernels for Ampere"
from   = "matmul/8"
rewrite = "Asynchronous copies, the swizzle and the fragments' layout depend on one another: mma.sync alone waits for data, and each of the others alone changes nothing. matmul/10 to 13 take the same steps one at a time with wmma."
dtypes = ["bf16", "f16", "tf32"]
needs  = [
  "sm >= 80",
  "BM % WM == 0 and BN % WN == 0",
  "BK * sizeof_real == 64 or BK * sizeof_real == 128",
  "BM // WM * (BN // WN) * 32 // (BK * sizeof_real // 16) % 8 == 0",  # the swizzle repeats every eight rows
  "BM // WM * (BN // WN) <= 16",
  "(BM * BK * sizeof_real // 16) % (BM // WM * (BN // WN) * 32) == 0",
  "(BN * BK * sizeof_real // 16) % (BM // WM * (BN // WN) * 32) == 0",
  "STAGES * (BM + BN) * BK * sizeof_real <= 232448",
]
[tune]
BM = [128, 64, 256]
BN = [128, 64, 256]
BK = [32, 64]
WM = [64, 32]
WN = [64, 32]
STAGES = [3, 4]
[define]
ALIGNED = "int(C * sizeof_real % 16 == 0)"
[bind]
M = "B * T"
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, BN)", "ceil_div(B * T, BM)"]
block  = "BM // WM * (BN // WN) * 32"
shared = "STAGES * (BM + BN) * BK * sizeof_real"
[model]
serves = { tensorcore = 1 }
---*/
#include "rung.cuh"

constexpr int WARPS_N = BN / WN, THREADS = BM / WM * WARPS_N * WARP_SIZE;
constexpr int ROW_BYTES = BK * sizeof(Real);
constexpr int CHUNKS = ROW_BYTES / 16;  // pieces of 16 bytes in a row of a tile
constexpr int STEPS = ROW_BYTES / 32;   // one mma is 32 bytes deep: 16 halves or 8 floats
constexpr int STAGE_BYTES = (BM + BN) * ROW_BYTES;

// Where a piece is in a tile. The eight rows that ldmatrix reads together are in eight different groups of banks.
__device__ __forceinline__ int swizzled(int row, int chunk)
{
    const int turn = CHUNKS == 8 ? row : row / 2;  // 128 bytes hold one row of 8 pieces or two of 4
    return row * ROW_BYTES + ((chunk ^ turn) % CHUNKS) * 16;
}

// This thread's part in copying ROWS rows of a matrix to shared memory, BK columns at a time. Rows beyond the matrix
// repeat its last one (their results are never stored); columns beyond it are zeros.
template <int ROWS>
struct TileCopy
{
    static constexpr int COUNT = ROWS * CHUNKS / THREADS, STRIDE = THREADS / CHUNKS;
    static_assert(STRIDE % 8 == 0, "the swizzle repeats every eight rows");

    const Real* source;
    int offset[COUNT];
    int target, c_thread;

    __device__ __forceinline__ TileCopy(const Real* matrix, int r0, int rows, int C)
    {
        const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        source = matrix + size_t(r0) * C;
        target = swizzled(row, chunk);
        c_thread = chunk * VEC;
#pragma unroll
        for (int i = 0; i < COUNT; i++) offset[i] = min(row + i * STRIDE, rows - 1 - r0) * C + c_thread;
    }

    __device__ __forceinline__ void start(char* tile, int c0, int C) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            char* to = tile + target + i * STRIDE * ROW_BYTES;
            const Real* from = source + offset[i] + c0;
#if ALIGNED
            cp_async_16(to, from, c0 + c_thread < C);
#else
            // Rows may start at any address: elements are copied one by one.
#pragma unroll 1
            for (int j = 0; j < VEC; j++) {
                const bool valid = c0 + c_thread + j < C;
#if defined(RUNG_TF32)
                cp_async_4(to + j * 4, from + j, valid);
#else
                reinterpret_cast<Real*>(to)[j] = valid ? from[j] : from_float<Real>(0.0f);
#endif
            }
#endif
        }
    }
};

// What a warp multiplies in one step: WM rows of x and WN rows of weight, 32 bytes deep.
struct Fragments
{
    uint32_t a[WM / 16][4];
    uint32_t b[WN / 16][4];  // two tiles of 8 columns each

    // `a_row` and `b_row` are the swizzled places of this lane's row and piece at step 0; a step flips bits above them.
    __device__ __forceinline__ void load(const char* x_tile, const char* w_tile, int a_row, int b_row, int step)
    {
#pragma unroll
        for (int i = 0; i < WM / 16; i++) ldmatrix_x4(a[i], x_tile + (a_row ^ step * 32) + i * 16 * ROW_BYTES);
#pragma unroll
        for (int j = 0; j < WN / 16; j++) ldmatrix_x4(b[j], w_tile + (b_row ^ step * 32) + j * 16 * ROW_BYTES);
#if defined(RUNG_TF32)
#pragma unroll
        for (int r = 0; r < 4; r++) {
#pragma unroll
            for (int i = 0; i < WM / 16; i++) a[i][r] = to_tf32(__uint_as_float(a[i][r]));
#pragma unroll
            for (int j = 0; j < WN / 16; j++) b[j][r] = to_tf32(__uint_as_float(b[j][r]));
        }
#endif
    }
};

__device__ __forceinline__ void multiply(float (&sum)[WM / 16][WN / 8][4], const Fragments& f)
{
#pragma unroll
    for (int i = 0; i < WM / 16; i++) {
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
            const uint32_t b[2] = {f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]};
#if defined(RUNG_TF32)
            mma_m16n8k8_tf32(sum[i][j], f.a[i], b);
#else
            mma_m16n8k16<Real>(sum[i][j], f.a[i], b);
#endif
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul(const Real* x, const Real* weight, const Real* bias, Real* out, int M, int OC, int C)
{
    extern __shared__ __align__(128) char smem[];

    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const int warp_m = warp / WARPS_N * WM, warp_n = warp % WARPS_N * WN;
    // ldmatrix takes row addresses from lanes: of x, 16 rows and then the next piece; of weight, 8 rows, next piece, next 8.
    const int a_row = swizzled(warp_m + lane % 16, lane / 16);
    const int b_row = swizzled(warp_n + lane / 16 * 8 + lane % 8, lane / 8 % 2);

    const TileCopy<BM> x_copy(x, m0, M, C);
    const TileCopy<BN> w_copy(weight, n0, OC, C);
    const int tiles = ceil_div(C, BK);
    auto start = [&](int tile) {
        char* stage = smem + tile % STAGES * STAGE_BYTES;
        if (tile < tiles) {
            x_copy.start(stage, tile * BK, C);
            w_copy.start(stage + BM * ROW_BYTES, tile * BK, C);
        }
        cp_async_commit();  // an empty group when no tile is left, so that the number of groups equals the number of tiles
    };

    for (int tile = 0; tile < STAGES - 1; tile++) start(tile);
    cp_async_wait<STAGES - 2>();
    __syncthreads();

    float sum[WM / 16][WN / 8][4] = {};
    Fragments fragments[2];
    fragments[0].load(smem, smem + BM * ROW_BYTES, a_row, b_row, 0);
    for (int tile = 0; tile < tiles; tile++) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step == STEPS - 1) {
                // The next tile has landed, and all warps have read the last of the stage that is refilled after this.
                cp_async_wait<STAGES - 2>();
                __syncthreads();
            }
            const char* stage = smem + (tile + (step == STEPS - 1)) % STAGES * STAGE_BYTES;
            fragments[(step + 1) % 2].load(stage, stage + BM * ROW_BYTES, a_row, b_row, (step + 1) % STEPS);
            if (step == 0) start(tile + STAGES - 1);
            multiply(sum, fragments[step % 2]);
        }
    }

    // A lane holds pairs of neighbours. Only the stores are guarded, so that the code stays without branches.
    const int col0 = n0 + warp_n + lane % 4 * 2;
    float2 b[WN / 8];
#pragma unroll
    for (int j = 0; j < WN / 8; j++) {
        const int col = col0 + j * 8;
        b[j].x = bias && col < OC ? to_float(bias[col]) : 0.0f;
        b[j].y = bias && col + 1 < OC ? to_float(bias[col + 1]) : 0.0f;
    }
    const bool even = OC % 2 == 0;
#pragma unroll
    for (int i = 0; i < WM / 8; i++) {
        const int row = m0 + warp_m + i * 8 + lane / 4;
        Real* target = out + size_t(row) * OC + col0;
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
            const float* s = &sum[i / 2][j][i % 2 * 2];
            const Vec<Real, 2> pair = {from_float<Real>(s[0] + b[j].x), from_float<Real>(s[1] + b[j].y)};
            const int left = row < M ? OC - col0 - j * 8 : 0;  // columns from here to the edge
            if (even && left > 0) *reinterpret_cast<Vec<Real, 2>*>(target + j * 8) = pair;
            if (!even && left > 0) target[j * 8] = pair[0];
            if (!even && left > 1) target[j * 8 + 1] = pair[1];
        }
    }
}
