/*---
idea   = "Joint tiling as the report's counters have it: only the tile of weight is staged in shared memory; a thread takes its row of x from global memory into a register and multiplies it by COARSEN columns."
expect = "Half of rung 4's shared stores, one shared load for each product of a thread, and the loads of x go through L1: lanes of a warp read eight rows, so rung 4, which stages both operands, should be faster."
found  = "146 us for 256 x 768 x 2304 in f32 on an H200, 7.2x over rung 1. Its counters are the report's: 442,368 shared stores, 14.16 M shared loads, and 2.23 M global loads."
provenance = "ECE 408 GPT-2, milestone 2: tiles of 32 x 32, coarsening 8, a 2-D block. Its chart for 256 x 768 x 2304 (442.37 k shared stores, 14.16 M shared loads, 2.23 M global accesses) is this kernel's count, not rung 4's."
from   = "matmul/4"
side_experiment = "The report's kernel, beside rung 4."
inherit = ["bind"]
dtypes = ["f32", "f16", "bf16"]
[tune]
TILE = [32]
COARSEN = [8, 4, 16]
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(OC, TILE)", "ceil_div(B * T, TILE)"]
block  = ["TILE // COARSEN", "TILE"]
---*/
#include "rung.cuh"

constexpr int COLUMNS = TILE / COARSEN;  // threads along a row of the tile

extern "C" __global__ void matmul(const Real* x, const Real* weight, const Real* bias, Real* out, int M, int OC, int C)
{
    __shared__ float w_tile[TILE][TILE + 1];

    const int tx = threadIdx.x, ty = threadIdx.y, rank = ty * COLUMNS + tx;
    const int row = blockIdx.y * TILE + ty, n0 = blockIdx.x * TILE;
    const Real* x_row = x + size_t(min(row, M - 1)) * C;

    float sum[COARSEN] = {};
    for (int c0 = 0; c0 < C; c0 += TILE) {
#pragma unroll
        for (int i = 0; i < COARSEN; i++) {
            const int r = rank / TILE + i * COLUMNS, c = c0 + rank % TILE;
            w_tile[r][rank % TILE] = n0 + r < OC && c < C ? to_float(weight[size_t(n0 + r) * C + c]) : 0.0f;
        }
        __syncthreads();
        const int depth = min(TILE, C - c0);
        for (int k = 0; k < depth; k++) {
            const float in_register = to_float(x_row[c0 + k]);
#pragma unroll
            for (int i = 0; i < COARSEN; i++) sum[i] += in_register * w_tile[tx + i * COLUMNS][k];
        }
        __syncthreads();
    }

    if (row >= M) return;
#pragma unroll
    for (int i = 0; i < COARSEN; i++) {
        const int col = n0 + tx + i * COLUMNS;
        if (col < OC) out[size_t(row) * OC + col] = from_float<Real>(sum[i] + (bias ? to_float(bias[col]) : 0.0f));
    }
}
