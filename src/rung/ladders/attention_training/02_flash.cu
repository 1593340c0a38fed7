/*---
idea   = "Flash attention's backward pass: forward keeps one logsumexp per row; backward computes each tile of P again from it, so that no T x T matrix is ever written."
expect = "Traffic falls from tens of T x T matrices to a few reads of q, k, v and dout per tile, for two products more: the paper's 66.6 GFLOP become 75.2, and 40.3 GB become 4.4. Faster by a factor of several, though its tiles of 32 x 32 leave most of the arithmetic rate unused."
provenance = "Flash attention (Dao et al.), the lecture's part 3: 'they recompute tile-by-tile'; FlashAttention 2's order, a loop over queries for dK and dV and one over keys for dQ."
rewrite = "The other algorithm: nothing of the standard one's kernels remains."
dtypes = ["f32", "f16", "bf16"]
needs  = "HS <= 128"

buffers.lse   = { shape = ["B", "NH", "T"], dtype = "f32" }
buffers.delta = { shape = ["B", "NH", "T"], dtype = "f32" }

[define]
HS = "C // NH"

[[launch]]
kernel = "forward"
grid   = ["ceil_div(T, 32)", "NH", "B"]
block  = 256
shared = "4 * (3 * 32 * (HS + 1) + 32 * 33)"

[[launch]]
kernel = "key_gradients"
grid   = ["ceil_div(T, 32)", "NH", "B"]
block  = 256
shared = "4 * (4 * 32 * (HS + 1) + 2 * 32 * 33)"

[[launch]]
kernel = "query_gradients"
grid   = ["ceil_div(T, 32)", "NH", "B"]
block  = 256
shared = "4 * (4 * 32 * (HS + 1) + 32 * 33)"
---*/
#include "rung.cuh"

constexpr int TILE = 32, LANES = 8;  // threads of a row of a tile: each has every eighth column
constexpr int COLUMNS = TILE / LANES, WIDTH = ceil_div(HS, LANES), ROW = HS + 1;

// Rows row0 ... row0 + 31 of a matrix whose rows are `step` apart, as floats; zeros beyond the last token.
__device__ __forceinline__ void load_tile(float* tile, const Real* rows, int row0, int T, int64_t step)
{
    // perhaps never skipped: with the default tuning there is a number for each thread
    for (int i = threadIdx.x; i < TILE * HS; i += blockDim.x) {
        const int r = i / HS, d = i % HS;
        tile[r * ROW + d] = row0 + r < T ? to_float(rows[(row0 + r) * step + d]) : 0.0f;
    }
}

__device__ __forceinline__ float dot(const float* a, const float* b)
{
    float sum = 0.0f;
    for (int d = 0; d < HS; d++) sum += a[d] * b[d];
    return sum;
}

// Over the eight lanes that share a row.
__device__ __forceinline__ float row_sum(float x)
{
    for (int offset = LANES / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

extern "C" __global__ void forward(const Real* qkv, const Real* dout, Real* out, float* lse, float* delta, int T, int C, int NH,
                                   float scale)
{
    extern __shared__ float shared[];
    float *Q = shared, *K = Q + TILE * ROW, *V = K + TILE * ROW, *P = V + TILE * ROW;  // P (TILE, TILE + 1)
    const int row = threadIdx.x / LANES, lane = threadIdx.x % LANES, nh = blockIdx.y, b = blockIdx.z;
    const int row0 = blockIdx.x * TILE, t1 = row0 + row;
    const int64_t step = 3 * C;
    const Real* q = qkv + b * T * step + nh * HS;
    load_tile(Q, q, row0, T, step);

    float o[WIDTH] = {}, m = -INFINITY, l = 0.0f;
    for (int key0 = 0; key0 <= row0; key0 += TILE) {
        __syncthreads();
        load_tile(K, q + C, key0, T, step);
        load_tile(V, q + 2 * C, key0, T, step);
        __syncthreads();
        float s[COLUMNS], largest = m;
        for (int i = 0; i < COLUMNS; i++) {
            const int t2 = lane + i * LANES;
            s[i] = key0 + t2 <= t1 ? scale * dot(Q + row * ROW, K + t2 * ROW) : -INFINITY;
            largest = fmaxf(largest, s[i]);
        }
        for (int offset = LANES / 2; offset > 0; offset /= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, offset));
        }
        const float shrink = expf(m - largest);
        m = largest;
        float sum = 0.0f;
        for (int i = 0; i < COLUMNS; i++) {
            const float p = expf(s[i] - m);
            P[row * (TILE + 1) + lane + i * LANES] = p;
            sum += p;
        }
        l = l * shrink + row_sum(sum);
        __syncwarp();  // the row's eight lanes are in one warp
        for (int j = 0; j < WIDTH; j++) {
            const int d = lane + j * LANES;
            float part = 0.0f;
            for (int t2 = 0; t2 < TILE && d < HS; t2++) part += P[row * (TILE + 1) + t2] * V[t2 * ROW + d];
            o[j] = o[j] * shrink + part;
        }
    }
    float along = 0.0f;  // sum(out dout), which is sum(P dP)
    const int64_t at = ((int64_t)b * T + t1) * C + nh * HS;
    for (int j = 0; j < WIDTH; j++) {
        const int d = lane + j * LANES;
        if (t1 >= T || d >= HS) continue;
        out[at + d] = from_float<Real>(o[j] / l);
        along += o[j] / l * to_float(dout[at + d]);
    }
    along = row_sum(along);
    if (t1 < T && lane == 0) {
        lse[((int64_t)b * NH + nh) * T + t1] = m + logf(l);
        delta[((int64_t)b * NH + nh) * T + t1] = along;
    }
}

// One entry of P and of dS, from tiles in shared memory.
__device__ __forceinline__ void again(const float* q, const float* k, const float* v, const float* d, bool seen, float lse,
                                      float delta, float scale, float& p, float& ds)
{
    p = seen ? expf(scale * dot(q, k) - lse) : 0.0f;
    ds = seen ? p * (dot(d, v) - delta) * scale : 0.0f;
}

extern "C" __global__ void key_gradients(const Real* qkv, const Real* dout, const float* lse, const float* delta, Real* dqkv,
                                         int T, int C, int NH, float scale)
{
    extern __shared__ float shared[];
    float *Q = shared, *K = Q + TILE * ROW, *V = K + TILE * ROW, *D = V + TILE * ROW;
    float *P = D + TILE * ROW, *S = P + TILE * (TILE + 1);  // (TILE, TILE + 1)
    const int row = threadIdx.x / LANES, lane = threadIdx.x % LANES, nh = blockIdx.y, b = blockIdx.z;
    const int key0 = blockIdx.x * TILE;
    const int64_t step = 3 * C, head = ((int64_t)b * NH + nh) * T;
    const Real* q = qkv + b * T * step + nh * HS;
    load_tile(K, q + C, key0, T, step);
    load_tile(V, q + 2 * C, key0, T, step);

    float dk[WIDTH] = {}, dv[WIDTH] = {};  // of key key0 + row
    for (int row0 = key0; row0 < T; row0 += TILE) {
        __syncthreads();
        load_tile(Q, q, row0, T, step);
        load_tile(D, dout + (int64_t)b * T * C + nh * HS, row0, T, C);
        __syncthreads();
        const int t1 = row0 + row;
        const float e = t1 < T ? lse[head + t1] : 0.0f, along = t1 < T ? delta[head + t1] : 0.0f;
        for (int i = 0; i < COLUMNS; i++) {
            const int t2 = lane + i * LANES, at = row * (TILE + 1) + t2;
            again(Q + row * ROW, K + t2 * ROW, V + t2 * ROW, D + row * ROW, t1 < T && key0 + t2 <= t1, e, along, scale, P[at],
                  S[at]);
        }
        __syncthreads();
        for (int j = 0; j < WIDTH; j++) {
            const int d = lane + j * LANES;
            for (int r = 0; r < TILE && d < HS; r++) {
                dv[j] += P[r * (TILE + 1) + row] * D[r * ROW + d];
                dk[j] += S[r * (TILE + 1) + row] * Q[r * ROW + d];
            }
        }
    }
    Real* to = dqkv + (b * T + key0 + row) * step + nh * HS;
    for (int j = 0; j < WIDTH; j++) {
        const int d = lane + j * LANES;
        if (key0 + row >= T || d >= HS) continue;
        to[C + d] = from_float<Real>(dk[j]);
        to[2 * C + d] = from_float<Real>(dv[j]);
    }
}

extern "C" __global__ void query_gradients(const Real* qkv, const Real* dout, const float* lse, const float* delta, Real* dqkv,
                                           int T, int C, int NH, float scale)
{
    extern __shared__ float shared[];
    float *Q = shared, *K = Q + TILE * ROW, *V = K + TILE * ROW, *D = V + TILE * ROW, *S = D + TILE * ROW;
    const int row = threadIdx.x / LANES, lane = threadIdx.x % LANES, nh = blockIdx.y, b = blockIdx.z;
    const int row0 = blockIdx.x * TILE, t1 = row0 + row;
    const int64_t step = 3 * C, head = ((int64_t)b * NH + nh) * T;
    const Real* q = qkv + b * T * step + nh * HS;
    load_tile(Q, q, row0, T, step);
    load_tile(D, dout + (int64_t)b * T * C + nh * HS, row0, T, C);
    const float e = t1 < T ? lse[head + t1] : 0.0f, along = t1 < T ? delta[head + t1] : 0.0f;

    float dq[WIDTH] = {};
    for (int key0 = 0; key0 <= row0; key0 += TILE) {
        __syncthreads();
        load_tile(K, q + C, key0, T, step);
        load_tile(V, q + 2 * C, key0, T, step);
        __syncthreads();
        for (int i = 0; i < COLUMNS; i++) {
            const int t2 = lane + i * LANES;
            float p;
            again(Q + row * ROW, K + t2 * ROW, V + t2 * ROW, D + row * ROW, t1 < T && key0 + t2 <= t1, e, along, scale, p,
                  S[row * (TILE + 1) + t2]);
        }
        __syncwarp();  // the row's eight lanes are in one warp
        for (int j = 0; j < WIDTH; j++) {
            const int d = lane + j * LANES;
            for (int t2 = 0; t2 < TILE && d < HS; t2++) dq[j] += S[row * (TILE + 1) + t2] * K[t2 * ROW + d];
        }
    }
    for (int j = 0; j < WIDTH; j++) {
        const int d = lane + j * LANES;
        if (t1 < T && d < HS) dqkv[(b * T + t1) * step + nh * HS + d] = from_float<Real>(dq[j]);
    }
}
