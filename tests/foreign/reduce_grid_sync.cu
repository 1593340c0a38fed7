/*---
idea = "One cooperative launch; the grid meets between the two passes."
[bind]
g_idata = "x"
g_odata = "out"
rows = "B"
cols = "N"
[buffers]
partial = { shape = ["B", 8], dtype = "f32" }
[[launch]]
kernel = "reduceSinglePassMultiBlockCG"
grid = [8, "min(B, 4)"]
block = 64
cooperative = true
---*/
// Sums of rows by a cooperative grid: partial sums, a barrier of the grid, their sums.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <stdio.h>

namespace cg = cooperative_groups;

__global__ void reduceSinglePassMultiBlockCG(const float* g_idata, float* g_odata, float* partial, int rows, int cols) {
    cg::grid_group grid = cg::this_grid();
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> tile32 = cg::tiled_partition<32>(block);
    __shared__ double warps[2];
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        double sum = 0;
        for (size_t i = blockIdx.x * blockDim.x + block.thread_rank(); i < cols; i += gridDim.x * blockDim.x)
            sum += g_idata[(size_t)row * cols + i];
        sum = cg::reduce(tile32, sum, cg::plus<double>());
        if (tile32.thread_rank() == 0) warps[tile32.meta_group_rank()] = sum;
        cg::sync(block);
        if (block.thread_rank() == 0) partial[row * gridDim.x + blockIdx.x] = (float)(warps[0] + warps[1]);
        cg::sync(block);
    }
    cg::sync(grid);
    for (int row = grid.thread_rank(); row < rows; row += grid.size()) {
        float total = 0.f;
        for (int i = 0; i < gridDim.x; ++i) total += partial[row * gridDim.x + i];
        g_odata[row] = total;
    }
}
