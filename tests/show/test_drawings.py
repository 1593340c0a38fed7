"""Drawings show each lane where it is, and as many passes and sectors as were counted."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from emulation import needs_compiler
from gpuless.counts.counters import TRACED, Sample
from rung.dtypes import DTYPES
from rung.profile import emulated
from rung.profile.counted import Counted
from rung.results.row import Row
from rung.rungs import catalogue
from rung.rungs.base import Subject
from rung.show import drawings, layouts
from verbs import rung


@pytest.mark.parametrize(
    ("size", "apart", "count"), [(4, 4, 1), (4, 128, 32), (4, 8, 2), (16, 16, 4), (8, 8, 2), (4, 0, 1)]
)
def test_passes_are_those_of_the_banks(size: int, apart: int, count: int) -> None:
    sample = Sample(size, 0, {lane: lane * apart for lane in range(32)})
    rows = drawings.passes(sample)
    assert len(rows) == count
    assert {lane for row in rows for lanes in row.values() for lane in lanes} == set(range(32))
    ElementTree.fromstring(drawings.banks(sample))


@pytest.mark.parametrize(("apart", "phase", "count"), [(4, 0, 4), (4, 16, 5), (128, 0, 32), (0, 0, 1)])
def test_sectors_are_those_of_the_addresses(apart: int, phase: int, count: int) -> None:
    drawn = ElementTree.fromstring(drawings.sectors(Sample(4, phase, {lane: lane * apart for lane in range(32)})))
    boxes = [e for e in drawn.iter() if e.get("class") == "box"]
    assert len(boxes) == count


@needs_compiler
def test_a_page_shows_parent_and_child_without_scripts(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert rung("draw", "transpose/3", "--shape", "R=64,C=64", "-o", str(page)) == 0
    text = page.read_text()
    assert "transpose/02_tiled" in text and "transpose/03_padded" in text
    assert "<script" not in text and "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme: dark" in text
    assert text.count("pass 32<") == 1  # only the parent has conflicts


def drawn(name: str, **dims: int) -> Counted:
    rung = catalogue.find(name)
    return emulated.run(Subject(rung, "", rung.operation.complete(dims), DTYPES["f32"]), trace=True)


def captions(html: str) -> list[str]:
    return re.findall("<figcaption>(.*?)</figcaption>", html)


@needs_compiler
@pytest.mark.parametrize(("name", "meet"), [("transpose/2", 32), ("transpose/3", 1), ("transpose/4", 1)])
def test_a_tile_shows_the_bank_of_each_element(name: str, meet: int) -> None:
    counted = drawn(name, R=64, C=64)
    (kernel,) = counted.kernels
    stored = Counter(
        (lane - out.at) // 4
        for out in counted.memory
        for request in kernel.trace
        if out.name == "out" and request.access[2:4] == ("global", "write")
        for lane in request.lanes.values()
    )
    assert stored == Counter(range(64 * 64))  # by any block, once
    whole, mine, read = captions(layouts.work(counted))
    assert "out (64 × 64)" in whole and "4 blocks of 256 threads" in whole
    assert "1,024 elements of block 0" in mine and "4 elements of thread 0" in mine
    assert "x (64 × 64): block 0 reads 1,024 elements, each once" in read
    tile = layouts.tile(counted)
    assert f"32 words, at most {meet} in one bank" in captions(tile)[1]
    colours = ElementTree.fromstring(tile).findall(".//{*}figure")[2].findall(".//{*}g/{*}path")
    assert len(colours) == 32  # one for each bank
    columns = [{run.split()[0] for run in c.get("d", "").split("M")[1:]} for c in colours]
    assert all(len(some) == 32 // meet for some in columns)  # without padding, each bank is one column


@needs_compiler
@pytest.mark.parametrize(("name", "meet"), [("attention/13", 32), ("attention/14", 1)])
def test_the_load_of_most_passes_is_drawn_wherever_its_tile_lies(name: str, meet: int) -> None:
    """The keys come after the queries in shared memory, and one line reads both."""
    counted = drawn(name, B=1, T=67, C=64, NH=2)
    assert f"32 words, at most {meet} in one bank" in captions(layouts.tile(counted))[1]
    lines = catalogue.find(name).source.splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if "sum += Q[r * HS + hs] * K[c" in text]
    (found,) = [one for one in drawings.costly(counted) if one.access.line == line]
    assert len({*found.worst.lanes.values()}) == 32  # not the broadcast of the query


@needs_compiler
def test_the_tile_of_a_tensor_map_lies_as_its_swizzle_says() -> None:
    """Rows of 64 bf16: the first two columns of eight rows lie in eight different groups of four banks."""
    rung = catalogue.find("matmul/20")
    values = rung.operation.complete({"B": 1, "T": 128, "C": 128, "OC": 128})
    counted = emulated.run(Subject(rung, "", values, DTYPES["bf16"]), trace=True)
    (kernel,) = counted.kernels
    found = layouts._copied(kernel, counted.memory)
    assert found is not None
    tensor, words, swizzle = found
    assert swizzle == 3 and any("a swizzle of 128 bytes" in caption for caption in captions(layouts.tile(counted)))
    for columns in (0, 2, 62):
        assert {words[row * tensor.shape[-1] + columns] % 32 // 4 for row in range(8)} == set(range(8))
        assert len({words[row * tensor.shape[-1] + columns] % 4 for row in range(8)}) == 1


@needs_compiler
def test_instructions_of_an_unrolled_line_share_one_drawing_which_names_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.cu"
    path.write_text("""/*---
idea = "Unrolled."
expect = "."
[[launch]]
kernel = "relu"
grid = 1
block = 32
---*/
#include "apart.cuh"
__global__ void relu(const float* x, float* out, int N)
{
    #pragma unroll
    for (int i = 0; i < 8; i++) out[i * 32 + threadIdx.x] = fmaxf(apart(x, threadIdx.x * (i + 1) % N), 0.0f);
}
""")
    (tmp_path / "apart.cuh").write_text("__device__ float apart(const float* x, int at) { return x[at]; }\n")
    (one,) = catalogue.select("relu", path)
    counted = emulated.run(Subject(one, "", one.operation.complete({"N": 256}), DTYPES["f32"]), trace=True)
    (load,) = [found for found in drawings.accesses(counted) if found.access.direction == "read"]
    assert load.instructions == 8 and load.counts.requests == 8
    assert len(drawings._by_sector(load.worst)) == 32  # of the last, with lanes eight elements apart
    page = drawings.page([counted], {counted.rung: drawings.sources_of(one)}, {})
    assert page.count("8 requests (of 8 instructions") == 2 and "32 in the drawn one" in page


@needs_compiler
def test_stores_are_drawn_where_the_first_blocks_loads_fill_the_trace() -> None:
    counted = drawn("token_logprob/1", B=1, T=67, C=31, V=251)
    whole, mine, read, _ = captions(layouts.work(counted))
    assert "1 block of 128 threads" in whole and "the 67 elements of block 0" in mine
    assert f"by its first {TRACED // 3:,} requests" in read


@needs_compiler
def test_a_product_reads_each_element_as_often_as_threads_need_it() -> None:
    counted = drawn("matmul/1", B=1, T=32, C=16, OC=32)
    (kernel,) = counted.kernels
    reads = layouts._read(kernel, counted.memory)
    times = next(found for tensor, found in reads.items() if tensor.name == "x")
    threads = math.prod(kernel.config.block)
    assert sum(sum(who.values()) for who in times.values()) == threads * 16  # a row of x for each output
    said = f"x (1 × 32 × 16): block 0 reads {len(times)} elements, each {threads * 16 / len(times):.3g} times"
    assert any(said in caption for caption in captions(layouts.work(counted)))


def test_a_stored_drawing_shows_counters_beside_the_parents() -> None:
    def row(what: str, conflicts: int, shape: str) -> Row:
        kernels = [{"figures": {"conflicts_load": conflicts, "shared_loads": 7}}]
        detail = {"work": "<p>w</p>", "tile": f"<p>{conflicts}</p>", "line": "", "kernels": kernels}
        return Row(kind="draw", what=what, dtype="f32", shape=shape, detail=detail)

    child, parent = row("transpose/03_padded", 0, "R=2"), row("transpose/02_tiled", 31, "R=2")
    beside = drawings.card(child, parent)
    assert "02_tiled" in beside and ">31<" in beside and "<p>w</p>" not in beside and "<p>0</p>" in beside
    alone = drawings.card(child, row("transpose/02_tiled", 31, "R=3"))
    assert "02_tiled" not in alone and "<p>w</p>" in alone


def test_a_triton_rung_is_drawn_by_its_code() -> None:
    """Each of 4 blocks stores a tile of 64 by 64, cut at the edges."""
    pytest.importorskip("triton")
    counted = drawn("transpose/5", R=67, C=101)
    (kernel,) = counted.kernels
    out = next(tensor for tensor in counted.memory if tensor.name == "out")
    stored = Counter(
        (address - out.at) // 4
        for request in kernel.trace
        if (request.access.memory, request.access.direction) == ("global", "write")
        for address in request.lanes.values()
    )
    assert stored == Counter(range(67 * 101)) and {r.block for r in kernel.trace} == set(range(4))
    whole, _, read, *_ = captions(layouts.work(counted))
    assert "4 blocks of 128 threads" in whole and "block 0 reads 4,096 elements, each once" in read
    assert "bank" in drawings.page([counted], {}, {})
