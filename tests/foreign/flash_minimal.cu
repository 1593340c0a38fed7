/*---
idea = "One block per head and batch, one row of a tile per thread."
needs = ["causal == 0", "(C // NH) * 32 * 12 + 4096 <= 98304"]
[bind]
N = "T"
d = "C // NH"
Tc = "ceil_div(T, 32)"
Tr = "ceil_div(T, 32)"
Bc = 32
Br = 32
softmax_scale = "scale"
nh = "NH"
O = "out"
[buffers]
l = { shape = ["B", "NH", "T"], dtype = "f32", zero = true }
m = { shape = ["B", "NH", "T"], dtype = "f32" }
[[launch]]
kernel = "fill_minus_infinity"
grid = "ceil_div(B * NH * T, 256)"
block = 256
bind = { n = "B * NH * T" }
[[launch]]
kernel = "forward_kernel"
grid = ["B", "NH"]
block = 32
shared = "(3 * 32 * (C // NH) + 32 * 32) * 4"
---*/
// Flash attention in some eighty lines: tiles of 32 queries and 32 keys in shared memory, one row per thread.
#include <cuda.h>
#include <cuda_runtime.h>
#include <math.h>

__global__ void fill_minus_infinity(float* m, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) m[i] = -INFINITY;
}

__global__ void forward_kernel(const float* qkv, const int N, const int d, const int nh, const int Tc, const int Tr,
                               const int Bc, const int Br, const float softmax_scale, float* l, float* m, float* O) {
    int tx = threadIdx.x;
    int bx = blockIdx.x;
    int by = blockIdx.y;
    const int C = nh * d;
    const float* Q = qkv + (size_t)bx * N * 3 * C + by * d;
    const float* K = Q + C;
    const float* V = K + C;
    int lm_offset = (bx * gridDim.y * N) + (by * N);

    extern __shared__ float sram[];
    int tile_size = Bc * d;
    float* Qi = sram;
    float* Kj = &sram[tile_size];
    float* Vj = &sram[tile_size * 2];
    float* S = &sram[tile_size * 3];

    for (int j = 0; j < Tc; j++) {
        int key = Bc * j + tx;
        for (int x = 0; x < d; x++) {
            Kj[(tx * d) + x] = key < N ? K[(size_t)key * 3 * C + x] : 0.0f;
            Vj[(tx * d) + x] = key < N ? V[(size_t)key * 3 * C + x] : 0.0f;
        }
        __syncthreads();
        int keys = min(Bc, N - Bc * j);
        for (int i = 0; i < Tr; i++) {
            int row = Br * i + tx;
            if (row >= N) continue;
            for (int x = 0; x < d; x++) Qi[(tx * d) + x] = Q[(size_t)row * 3 * C + x];
            float row_m_prev = m[lm_offset + row];
            float row_l_prev = l[lm_offset + row];
            float row_m = -INFINITY;
            for (int y = 0; y < keys; y++) {
                float sum = 0;
                for (int x = 0; x < d; x++) sum += Qi[(tx * d) + x] * Kj[(y * d) + x];
                sum *= softmax_scale;
                S[(Bc * tx) + y] = sum;
                if (sum > row_m) row_m = sum;
            }
            float row_l = 0;
            for (int y = 0; y < keys; y++) {
                S[(Bc * tx) + y] = __expf(S[(Bc * tx) + y] - row_m);
                row_l += S[(Bc * tx) + y];
            }
            float row_m_new = max(row_m_prev, row_m);
            float before = __expf(row_m_prev - row_m_new);
            float now = __expf(row_m - row_m_new);
            float row_l_new = (before * row_l_prev) + (now * row_l);
            float* o = O + ((size_t)bx * N + row) * C + by * d;
            for (int x = 0; x < d; x++) {
                float pv = 0;
                for (int y = 0; y < keys; y++) pv += S[(Bc * tx) + y] * Vj[(y * d) + x];
                float old = j == 0 ? 0.0f : row_l_prev * before * o[x];
                o[x] = (1 / row_l_new) * (old + (now * pv));
            }
            m[lm_offset + row] = row_m_new;
            l[lm_offset + row] = row_l_new;
        }
        __syncthreads();
    }
}
