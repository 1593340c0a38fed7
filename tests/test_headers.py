"""A figure is of the code that was measured: of the rung, and of what it reaches in its headers, no more and no less."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from result_rows import document, row
from rung.bench import race
from rung.cuda import nvrtc
from rung.dtypes import DTYPES
from rung.results import current, store
from rung.rungs import catalogue, identity, tunings
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung

KERNEL = """/*---
idea = "A test."
dtypes = ["f32"]
[[launch]]
kernel = "k"
grid = "1"
block = "32"
---*/
#include "rung.cuh"
#include "own.cuh"
extern "C" __global__ void k(const Real* a, const Real* b, Real* out)
{
    Pair p{a[0], b[0]};
    out[threadIdx.x] = plus(p) + (from_two(a[1]));
}
"""
HEADER = """#pragma once
#include "deeper.cuh"
constexpr int TWO = 2, THREE = 3;
struct Pair
{
    Real a, b;
};
#if __CUDA_ARCH__ >= 900
__device__ Real plus(Pair p) { return twice(p.a) + p.b; }
#else
__device__ Real plus(Pair p) { return p.a + p.b; }
#endif
template <class T>
__device__ T from_two(T x) { return x + Real(THREE); }
__device__ Real unused(Real x)
{
    return x - 1;
}
#define SELDOM(x) (x)
"""
DEEPER = """#pragma once
namespace {
__device__ Real twice(Real x) { return 2 * x; }
__device__ Real thrice(Real x) { return 3 * x; }
}
"""


def mine(folder: Path, header: str = HEADER, deeper: str = DEEPER) -> Rung:
    folder.mkdir(exist_ok=True)
    path = folder / "mine.cu"
    path.write_text(KERNEL)
    (folder / "own.cuh").write_text(header)
    (folder / "deeper.cuh").write_text(deeper)
    return catalogue.rung_from_file(catalogue.operation("residual"), path)


REACHED = [
    ("+ p.b; }\n#else", "- p.b; }\n#else"),
    ("Real a, b;", "Real b, a;"),
    ("return x + Real", "return x * Real"),
    ("THREE = 3", "THREE = 4"),
    ("__CUDA_ARCH__ >= 900", "__CUDA_ARCH__ >= 800"),
]
NOT_REACHED = [
    ("return x - 1;", "return x - 2;"),
    ("(x)\n", "(2 * x)\n"),
    ("struct Pair\n", "// Two numbers.\nstruct  Pair   /* of */\n"),
    ("#pragma once\n", "#pragma once\n__device__ int a_new_helper(int n) { return n; }\n"),
]


@pytest.mark.parametrize(("old", "new"), REACHED)
def test_what_a_rung_reaches_in_a_header_counts(tmp_path: Path, old: str, new: str) -> None:
    assert HEADER.count(old) == 1
    before = identity.digest(mine(tmp_path))
    assert identity.digest(mine(tmp_path, HEADER.replace(old, new))) != before


@pytest.mark.parametrize(("old", "new"), NOT_REACHED)
def test_what_it_does_not_reach_and_what_is_only_said_does_not(tmp_path: Path, old: str, new: str) -> None:
    assert HEADER.count(old) == 1
    before = identity.digest(mine(tmp_path))
    assert identity.digest(mine(tmp_path, HEADER.replace(old, new))) == before


def test_a_header_that_a_header_includes_counts_too(tmp_path: Path) -> None:
    before = identity.digest(mine(tmp_path))
    assert identity.digest(mine(tmp_path, deeper=DEEPER.replace("2 * x", "x + x"))) != before
    assert identity.digest(mine(tmp_path, deeper=DEEPER.replace("3 * x", "x + x + x"))) == before


def test_the_digest_does_not_hang_on_where_the_rung_lies(tmp_path: Path) -> None:
    one, other = mine(tmp_path / "one"), mine(tmp_path / "other")
    assert identity.digest(one) == identity.digest(other) != ""
    assert one.digest == other.digest


def test_a_python_rung_reaches_the_files_and_the_rungs_that_it_names() -> None:
    reached = {name: {p.name for p, _ in identity.files(catalogue.find(name))} for name in ("decode/05", "decode/12")}
    assert {"04_one_row.cu", "one_row.cuh", "rung.cuh"} <= reached["decode/05"]
    assert {"library_products.cuh", "rung.cuh"} <= reached["decode/12"]
    assert identity.digest(catalogue.find("decode/torch")) == ""


def machine_code(elf: bytes) -> dict[str, bytes]:
    """Each kernel's instructions; around them an ELF file holds names that hang on the source's text."""
    (table,), (size, count, names) = struct.unpack_from("<Q", elf, 0x28), struct.unpack_from("<HHH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    labels = sections[names][4]
    found = {}
    for name, _, _, _, at, length in sections:
        label = elf[labels + name : elf.index(b"\0", labels + name)].decode()
        if label.startswith(".text."):
            found[label] = elf[at : at + length]
    assert found
    return found


@pytest.mark.parametrize("name", ["decode/11_streamed_int8", "matmul/16", "softmax/07", "sample/05", "attention/27"])
def test_the_compiler_reaches_nothing_else(tmp_path: Path, name: str) -> None:
    """Compiled without what counts as not reached, a rung of the ladders is the very same code."""
    rung = catalogue.find(name)
    assert isinstance(rung, CudaRung) and rung.path is not None
    copy, needed, dropped = tmp_path / rung.path.name, set(identity.reached(rung)), 0
    copy.write_text(rung.source)
    build = rung.build(rung.operation.complete(next(iter(rung.operation.shapes.values()))), DTYPES[rung.dtypes[-1]])
    build = replace(build, origin=str(copy), include=(str(tmp_path),))
    texts = {path.name: text for path, text in identity.files(rung)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    whole = machine_code(nvrtc.compile_cubin(build, "sm_90").path.read_bytes())
    for name, text in texts.items():
        for piece in identity.pieces_of(text):
            if piece not in needed:
                text, dropped = text.replace(piece.code, "", 1), dropped + 1
        (tmp_path / name).write_text(text)
    assert dropped > 10
    assert machine_code(nvrtc.compile_cubin(build, "sm_90").path.read_bytes()) == whole


def test_a_figure_is_old_when_a_header_has_changed_and_not_when_it_tells_of_none(tmp_path: Path) -> None:
    rung = catalogue.find("layernorm/tree")
    told = identity.digest(rung)
    for given, old in ((told, False), ("0" * 16, True), (None, False)):
        extra = {} if given is None else {"headers": given}
        file = document(tmp_path / "b.json", [row("layernorm/tree", 30.0, **extra)])
        figure = current.of_gpu(store.load(file), None).ladder("layernorm").get(rung.full_name, "f32", "b8t1024")
        assert figure is not None and figure.old is old


def test_of_two_figures_the_one_of_the_present_headers_counts(tmp_path: Path) -> None:
    rung = catalogue.find("layernorm/tree")
    rows = [row("layernorm/tree", 30.0, headers=identity.digest(rung)), row("layernorm/tree", 20.0, headers="0" * 16)]
    file = document(tmp_path / "b.json", rows)
    figure = current.of_gpu(store.load(file), None).ladder("layernorm").get(rung.full_name, "f32", "b8t1024")
    assert figure is not None and figure.us == 30.0


def test_a_tuning_of_other_headers_is_listed_as_such(tmp_path: Path) -> None:
    rung, path = catalogue.find("layernorm/tree"), tmp_path / "tunings.jsonl"
    for dtype, told in (("f32", identity.digest(rung)), ("bf16", "0" * 16)):
        timed = {**row("layernorm/tree", 30.0, dtype=dtype, headers=told), "machine": {"gpu": "one"}}
        tunings.record(rung, timed, None, path)
    listed = tunings.listed(path)
    assert {r["dtype"]: r["headers_changed"] for r in listed} == {"f32": False, "bf16": True}
    assert not any(r["stale"] for r in listed)  # the rung's own text, and with it the tunables, is as it was


def test_a_bench_and_a_sweep_tell_of_the_headers() -> None:
    rung = catalogue.find("layernorm/tree")
    values = rung.operation.complete(rung.operation.shapes["b4t64"])
    made = race._Race(rung.operation, "b4t64", values, DTYPES["f32"])._row(rung, None)
    assert {"digest": made.digest, "headers": made.headers} == store.source_of(rung)
    assert store.source_of(rung)["headers"]


def test_the_address_of_a_measurement_without_headers_is_what_it_was() -> None:
    plain = {"kind": "bench", "rung": "a/b", "digest": "c", "dtype": "f32", "values": {}, "tuning": {}}
    assert store.key_of(plain) == store.key_of({**plain, "headers": ""})
    assert store.key_of(plain) != store.key_of({**plain, "headers": "0" * 16})
