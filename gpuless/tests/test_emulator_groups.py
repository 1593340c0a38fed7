"""Cooperative groups: blocks, tiles, coalesced threads, clusters, grids."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from emulation import needs_compiler, orders, run
from gpuless import EmulatorFault

pytestmark = needs_compiler


def test_a_tile_of_every_size_reduces_shuffles_and_votes() -> None:
    source = """
    #include <cooperative_groups.h>
    #include <cooperative_groups/reduce.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(const float* x, float* out, int n) {
        cg::thread_block block = cg::this_thread_block();
        cg::thread_block_tile<SIZE> tile = cg::tiled_partition<SIZE>(block);
        float v = x[block.thread_rank()];
        float* o = out + block.thread_rank();
        o[0] = cg::reduce(tile, v, cg::plus<float>());
        o[n] = cg::reduce(tile, v, cg::greater<float>{});
        o[2 * n] = cg::reduce(tile, v, cg::less<float>{});
        o[3 * n] = tile.shfl(v, 0); o[4 * n] = tile.shfl_down(v, 1); o[5 * n] = tile.shfl_xor(v, SIZE / 2);
        o[6 * n] = tile.ballot(tile.thread_rank() == 1); o[7 * n] = tile.any(v > 5); o[8 * n] = tile.all(v < 5);
        o[9 * n] = tile.meta_group_rank() * 1000 + tile.meta_group_size();
        o[10 * n] = tile.thread_rank() + tile.size() + tile.num_threads() + block.size() + block.group_index().x;
        tile.sync(); block.sync(); cg::sync(block);
    }"""
    n = 128
    x = torch.randn(n)
    for size in (4, 8, 32):
        out = torch.zeros(11, n)
        run(source, x, out, n, block=n, defines=[("SIZE", str(size))], order="shuffled")
        tiles = x.view(-1, size)
        spread = lambda v, size=size: v[:, None].expand(-1, size).reshape(-1)  # noqa: E731
        torch.testing.assert_close(out[0], spread(tiles.sum(1)))
        assert torch.equal(out[1], spread(tiles.amax(1))) and torch.equal(out[2], spread(tiles.amin(1)))
        assert torch.equal(out[3], spread(tiles[:, 0]))
        assert torch.equal(out[4], torch.cat([tiles[:, 1:], tiles[:, -1:]], 1).reshape(-1))
        assert torch.equal(out[5], tiles[:, torch.arange(size) ^ size // 2].reshape(-1))
        assert out[6].eq(2).all()
        assert torch.equal(out[7], spread((tiles > 5).any(1).float()))
        assert torch.equal(out[8], spread((tiles < 5).all(1).float()))
        assert torch.equal(out[9], spread(torch.arange(n // size) * 1000.0 + n // size))
        assert torch.equal(out[10], torch.arange(n) % size + 2.0 * size + n)


def test_coalesced_threads_and_scans() -> None:
    source = """
    #include <cooperative_groups.h>
    #include <cooperative_groups/scan.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(int* out) {
        auto tile = cg::tiled_partition<16>(cg::this_thread_block());
        out[threadIdx.x] = cg::inclusive_scan(tile, (int)threadIdx.x, cg::plus<int>());
        out[64 + threadIdx.x] = cg::exclusive_scan(tile, 2);
        auto odd = cg::binary_partition(tile, threadIdx.x % 2);
        out[128 + threadIdx.x] = odd.size() * 100 + odd.thread_rank();
        out[192 + threadIdx.x] = odd.shfl((int)threadIdx.x, 0);
    }"""
    out = torch.zeros(4, 64, dtype=torch.int32)
    run(source, out, block=64)
    t = torch.arange(64)
    assert torch.equal(out[0].long(), t.view(-1, 16).cumsum(1).view(-1))
    assert torch.equal(out[1].long(), t % 16 * 2)
    assert torch.equal(out[2].long(), 800 + t % 16 // 2)
    assert torch.equal(out[3].long(), t // 16 * 16 + t % 2)


GRID_SUM = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(float* x, float* out, int rounds) {
    __shared__ float mine;
    auto grid = cg::this_grid();
    if (threadIdx.x == 0) mine = blockIdx.x;
    for (int r = 0; r < rounds; r++) {
        if (threadIdx.x == 0) x[blockIdx.x] = mine + r;
        grid.sync();
        float sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += x[b];
        grid.sync();
        __syncthreads();
        if (threadIdx.x == 0) { mine += 1; out[r * gridDim.x + blockIdx.x] = sum; }
    }
}"""


@pytest.mark.parametrize("settings", list(orders()))
def test_grid_sync_keeps_each_blocks_shared_memory(settings: dict[str, Any]) -> None:
    x, out = torch.zeros(6), torch.zeros(3, 6)
    run(GRID_SUM, x, out, 3, grid=6, block=64, cooperative=True, **settings)
    assert out.tolist() == [[15 + 6 * 2 * r] * 6 for r in range(3)]


def test_grid_sync_without_a_cooperative_launch_is_reported() -> None:
    with pytest.raises(EmulatorFault) as caught:
        run(GRID_SUM, torch.zeros(2), torch.zeros(2), 1, grid=2, block=32)
    assert caught.value.kind == "trap"  # so the library answers


@pytest.mark.parametrize("settings", list(orders()))
def test_a_cluster_reads_and_writes_its_neighbours_shared_memory(settings: dict[str, Any]) -> None:
    source = """
    #include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(float* out) {
        __shared__ float box[32];
        extern __shared__ float dynamic[];
        auto cluster = cg::this_cluster();
        box[threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
        cluster.sync();
        unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
        out[blockIdx.x * 32 + threadIdx.x] = cluster.map_shared_rank(box, next)[threadIdx.x];
        cluster.map_shared_rank(dynamic, next)[threadIdx.x] = blockIdx.x;
        cluster.sync();
        out[(gridDim.x + blockIdx.x) * 32 + threadIdx.x] = dynamic[threadIdx.x];
    }"""
    out = torch.zeros(2, 8, 32)
    run(source, out, grid=8, block=32, cluster=(4, 1, 1), shared=128, **settings)
    block = torch.arange(8)
    neighbour, before = block // 4 * 4 + (block + 1) % 4, block // 4 * 4 + (block + 3) % 4
    assert torch.equal(out[0], neighbour[:, None] * 100.0 + torch.arange(32))
    assert torch.equal(out[1], before[:, None].expand(8, 32).float())


def test_a_cluster_may_have_sixteen_blocks_as_on_a_gpu() -> None:
    source = """
    #include <cooperative_groups.h>
    __global__ void k(int* out) {
        __shared__ int mine;
        auto cluster = cooperative_groups::this_cluster();
        mine = blockIdx.x;
        cluster.sync();
        out[blockIdx.x] = *cluster.map_shared_rank(&mine, 15 - cluster.block_rank()) + cluster.num_blocks();
        cluster.sync();
    }"""
    out = torch.zeros(16, dtype=torch.int32)
    run(source, out, grid=16, block=1, cluster=(16, 1, 1))
    assert out.tolist() == [31 - i for i in range(16)]
