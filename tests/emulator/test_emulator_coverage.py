"""Which branches and turns of loops were reached: counted at every condition, except for what a build knows."""

from __future__ import annotations

from pathlib import Path

import torch

from emulation import INCLUDE, load, needs_compiler, run
from rung import emulator
from rung.cuda.launch import LaunchConfig
from rung.emulator import Settings, coverage
from rung.emulator.coverage import Unreached

pytestmark = needs_compiler

SOURCE = """template <int N> __device__ constexpr int twice() { if (N > 3) return N; return 2 * N; }
constexpr int WIDTH = 4;
__global__ void k(int* out, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        if (i < 100)
            out[i] += 1;
        else if (i == 1000) out[i] = 0;
        if (WIDTH == twice<2>()) out[i] += 10;
    }
    for (int j = 0; j < WIDTH; j++) out[0] += 0;
    const int lane = threadIdx.x % 16, row = lane / 4;
    for (int j = row; j < WIDTH; j += 4) for (int m = j; m < 5; ++m) out[0] += 0;
    for (int j = row; j < n - 60; j += 4) out[0] += 0;
    int left = n;
    do left -= 32; while (left > 64);
    while (left > 0) { if (left == 7) break; left--; }
}"""


def launched(*sizes: int) -> coverage.Counts:
    coverage.counted()
    module = load(SOURCE, settings=Settings(coverage=True))
    for n in sizes:
        out = torch.zeros(128, dtype=torch.int32)
        module.launch("k", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", out), ("i32", n)])
        assert out[: min(n, 100)].tolist() == [11] * min(n, 100)
    return coverage.counted()


def reported(counts: coverage.Counts) -> list[tuple[int, str]]:
    return [(place.line, place.never) for place in coverage.unreached(counts)]


def test_what_no_launch_has_done_is_named() -> None:
    assert reported(launched(64)) == [
        (4, "never skipped"), (4, "never one turn"), (5, "never false"), (13, "never skipped"),
        (13, "never several turns"), (15, "never true"), (16, "never skipped"), (16, "never one turn"),
    ]  # fmt: skip


def test_launches_add_up_and_constants_are_no_question() -> None:
    assert reported(launched(20, 33, 64, 128)) == [(7, "never true")]
    assert reported(coverage.merged([launched(64), launched(20, 33, 128)])) == [(7, "never true")]


def test_turns_of_constant_steps_from_a_threads_number_are_known() -> None:
    assert not [line for line, _ in reported(launched(64)) if line == 12]
    assert [never for line, never in reported(launched(62)) if line == 13] == ["never several turns"]


def test_the_source_may_say_what_never_happens(tmp_path: Path) -> None:
    file = tmp_path / "a.cu"
    file.write_text("a\n// never true: n is even\nb\nc // never false: nobody asks\n\nd // perhaps never true: it is up to n\n")
    odd = coverage.Site(str(file), 3, 0, "branch", "if (n % 2)")
    other = coverage.Site(str(file), 4, 0, "branch", "if (n)")
    assert reported({odd: [5, 0, 0, 0], other: [0, 5, 0, 0]}) == []
    assert reported({odd: [5, 1, 0, 0]}) == [(3, "declared never true, but it was")]
    perhaps = coverage.Site(str(file), 6, 0, "branch", "if (n > 1000)")
    assert reported({perhaps: [5, 0, 0, 0]}) == reported({perhaps: [5, 1, 0, 0]}) == []
    assert reported({other: [0, 5, 0, 0], odd: [0, 0, 0, 1]}) == []


def test_ladders_are_counted_where_they_include() -> None:
    coverage.counted()
    source = '#include "rung.cuh"\n__global__ void k(float* out) { out[threadIdx.x] = warp_sum(1.0f); }'
    with emulator.under(coverage=True):
        out = torch.zeros(32)
        load(source).launch("k", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", out)])
    assert out.tolist() == [32.0] * 32
    assert {Path(site.file).parent for site in coverage.counted()} <= {Path(INCLUDE)}


def test_a_header_in_another_folder_is_reported_there(tmp_path: Path) -> None:
    source = '#include "odd.cuh"\n__global__ void k(float* out) { if (odd(threadIdx.x)) out[threadIdx.x] = 1.0f; }'
    reported = []
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "odd.cuh").write_text("__device__ bool odd(int n) { if (n % 2) return true; return false; }")
        coverage.counted()
        with emulator.under(coverage=True):
            load(source, include=(str(folder),)).launch(
                "k", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", torch.zeros(32))]
            )
        reported.append({Path(site.file).parent for site in coverage.counted() if site.file.endswith(".cuh")})
    assert reported == [{tmp_path / "here"}, {tmp_path / "there"}]


def test_a_build_without_counters_counts_nothing() -> None:
    coverage.counted()
    run(SOURCE, torch.zeros(128, dtype=torch.int32), 64)
    assert coverage.counted() == {}


def test_places_are_ordered() -> None:
    assert sorted([Unreached("b", 1, "", ""), Unreached("a", 2, "", "")])[0].file == "a"


def test_an_index_of_a_group_counts_as_a_threads_own() -> None:
    source = """#include <cooperative_groups.h>
__global__ void k(int* out, int n) {
    auto warp = cooperative_groups::tiled_partition<32>(cooperative_groups::this_thread_block());
    for (int i = warp.thread_rank(); i < n; i += warp.size()) out[i] = 1;
}"""
    coverage.counted()
    module, out = load(source, settings=Settings(coverage=True)), torch.zeros(64, dtype=torch.int32)
    module.launch("k", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", out), ("i32", 64)])
    assert out.eq(1).all() and (4, "never skipped") in reported(coverage.counted())
