/*---
idea = "Each tile publishes its sum, and looks back until it finds an inclusive one."
[bind]
in = "x"
n = "N"
tiles = "TILES"
[let]
TILES = "ceil_div(N, 1024)"
[buffers]
ticket = { shape = ["B"], dtype = "i32", zero = true }
state = { shape = ["B", "TILES"], dtype = "i32", zero = true }
value = { shape = ["B", "TILES"], dtype = "f32" }
running = { shape = ["B", "TILES"], dtype = "f32" }
[[launch]]
kernel = "look_back"
grid = "B * TILES"
block = 128
---*/
// Sums of rows whose tiles pass running sums on: a tile waits for its predecessor's inclusive sum (decoupled look-back).
#include <cuda_runtime.h>

enum { EMPTY = 0, PARTIAL = 1, INCLUSIVE = 2 };

__global__ void look_back(const float* in, float* out, int* ticket, int* state, float* value, float* running, int n, int tiles) {
    __shared__ float warps[4];
    __shared__ int tile_of_block;
    const int row = blockIdx.x / tiles;
    if (threadIdx.x == 0) tile_of_block = atomicAdd(ticket + row, 1);
    __syncthreads();
    const int tile = tile_of_block;
    float sum = 0.f;
    for (int i = threadIdx.x; i < 1024; i += 128) {
        const int at = tile * 1024 + i;
        if (at < n) sum += in[(size_t)row * n + at];
    }
    for (int offset = 16; offset; offset >>= 1) sum += __shfl_down_sync(~0u, sum, offset);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    float own = warps[0] + warps[1] + warps[2] + warps[3];
    const int me = row * tiles + tile;
    value[me] = own;
    if (tile) {
        __threadfence();
        atomicExch(state + me, PARTIAL);
    }
    float before = 0.f;
    for (int other = tile - 1; other >= 0; --other) {
        int seen;
        while ((seen = atomicAdd(state + row * tiles + other, 0)) == EMPTY) {}
        __threadfence();
        if (seen == INCLUSIVE) {
            before += running[row * tiles + other];
            break;
        }
        before += value[row * tiles + other];
    }
    running[me] = before + own;
    __threadfence();
    atomicExch(state + me, INCLUSIVE);
    if (tile == tiles - 1) out[row] = before + own;
}
