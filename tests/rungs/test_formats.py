"""Several rungs in one file: the same code in other number formats, and rungs that have had other names."""

from __future__ import annotations

from pathlib import Path

import pytest

from rung.check.judge import report_on
from rung.check.report import QUICK, CheckRequest
from rung.errors import RungError
from rung.rungs import catalogue, identity
from rung.rungs.cuda import CudaRung

RESIDUAL = catalogue.operation("residual")
SOURCE = """/*---
idea = "A sum."
found = "Fast."
needs = "C % 2 == 0"
[tune]
BLOCK = [32, 64]
[define]
TIMES = 1
[formats.doubled]
idea = "Twice the sum."
needs = "C % 4 == 0"
define = { TWICE = 1 }
[[launch]]
kernel = "k"
grid = "ceil_div(B * T * C, BLOCK)"
block = "BLOCK"
bind = { n = "B * T * C" }
---*/
#include "types.cuh"
extern "C" __global__ void k(const Element* a, const Element* b, Element* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = FACTOR * (a[i] + b[i]);
}
"""
TYPES = """#pragma once
#include "rung.cuh"
#ifdef TWICE
using Element = float;
constexpr float FACTOR = 2.0f;
#else
using Element = Real;
constexpr float FACTOR = 1.0f;
#endif
"""


@pytest.fixture
def pair(tmp_path: Path) -> tuple[CudaRung, CudaRung]:
    (tmp_path / "types.cuh").write_text(TYPES)
    path = tmp_path / "01_sum.cu"
    path.write_text(SOURCE)
    plain, doubled = catalogue.rungs_in_file(RESIDUAL, path)
    assert isinstance(plain, CudaRung) and isinstance(doubled, CudaRung)
    return plain, doubled


def test_a_format_is_the_same_file_with_other_keys(pair: tuple[CudaRung, CudaRung]) -> None:
    plain, doubled = pair
    assert (plain.name, doubled.name) == ("01_sum", "01_sum_doubled") and plain.number == doubled.number == 1
    assert (doubled.idea, doubled.found) == ("Twice the sum.", "")
    assert doubled.needs == ("C % 2 == 0", "C % 4 == 0") and doubled.tune == plain.tune
    assert doubled.header.define == {"TIMES": 1, "TWICE": 1} and plain.header.define == {"TIMES": 1}
    assert plain.source == doubled.source and identity.text(plain) != identity.text(doubled)


def test_a_parameters_type_is_the_one_that_the_formats_headers_choose(pair: tuple[CudaRung, CudaRung]) -> None:
    assert [rung.parameters["k"][0].ctype for rung in pair] == ["Real", "float"]


def test_each_format_gets_its_own_verdict(pair: tuple[CudaRung, CudaRung]) -> None:
    verdicts = []
    for rung in pair:
        asked = CheckRequest(rung.full_name, "f32", "emulator", file=str(rung.path), effort=QUICK)
        verdicts.append(report_on(asked).verdict)
    assert verdicts == ["ok", "failed"]


def test_a_format_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "01_sum.cu"
    path.write_text(SOURCE.replace("[formats.doubled]", "[formats]\nhalved = 1\n[formats.doubled]"))
    with pytest.raises(RungError, match=r"formats\.halved"):
        catalogue.rungs_in_file(RESIDUAL, path)


@pytest.mark.parametrize("name", ["16", "16_clusters_int8", "clusters_int8", "clusters"])
def test_a_format_is_found_by_name_and_the_plain_rung_by_number(name: str) -> None:
    assert catalogue.find(f"decode/{name}").name == ("16_clusters_int8" if "int8" in name else "16_clusters")
