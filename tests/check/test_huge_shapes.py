"""At shapes as large as tensors get some blocks show what no small shape does, and right kernels stay right there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rung.check.far import Far
from rung.check.report import ALONE, CheckRequest, Failure, Report
from rung.check.sandbox import Sandbox
from rung.check.trial import Ran, Trials
from rung.dtypes import dtype
from rung.errors import RungError
from rung.rungs import catalogue

ADD = """/*---
idea = "Adds."
dtypes = ["f32"]
[[launch]]
kernel = "add"
grid = "GRID"
block = 64
---*/
extern "C" __global__ void add(const float* a, const float* b, float* out, int B, int T, int C)
{
    BODY
}
"""
LOOP = "for (unsigned r = blockIdx.x; r < B * T; r += STEP) for (int c = threadIdx.x; c < C; c += 64) "
ROWS = LOOP.replace("STEP", "gridDim.x") + "out[(size_t)r * C + c] = a[AT] + b[(size_t)r * C + c];"
SUM = "out[r * C + c] = a[r * C + c] + b[r * C + c];"
ADD_IN_TRITON = '''"""Adds."""
import torch
import triton
import triton.language as tl
DTYPES = ["f32"]

@triton.jit
def add_kernel(a, b, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, mask=i < n) + tl.load(b + i, mask=i < n), mask=i < n)

def residual(a, b):
    out = torch.empty_like(a)
    add_kernel[(GRID,)](a, b, out, a.numel(), BLOCK=1024)
    return out
'''


def failure_of(text: str, folder: Path, *, operation: str = "residual", suffix: str = ".cu") -> tuple[str, str]:
    """The kind and the text of what some blocks show; empty if that is nothing."""
    path = folder / f"own{suffix}"
    path.write_text(text)
    of = catalogue.operation(operation)
    rung = catalogue.rung_from_file(of, path)
    asked = CheckRequest(rung.full_name, rung.dtypes[0], "emulator", effort=ALONE)
    with Sandbox("emulator", rung) as host:
        report = Report(rung.full_name, rung.dtypes[0], "emulator")
        trials = Trials(rung, dtype(rung.dtypes[0]), "emulator", report, host, asked)
        given = [(case, of.complete(case.values)) for case in of.cases if not case.change and case.where != "cuda"]
        ran = [Ran(0.0, 0.0, n, case, v) for n, (case, v) in enumerate(given) if not trials.refuses(v)]
        trials.at(ran[0].case, ran[0].values, 0).once()
        try:
            Far(trials, ran, 0).all()
        except (Failure, RungError) as failure:
            assert report.failure["dims"] and report.case, report
            return failure.kind, str(failure)
    return "", ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "body", "kind"),
    [
        ("B * T", ROWS.replace("AT", "(size_t)r * C + c"), ""),
        ("B * T", ROWS.replace("AT", "r * C + c"), ""),  # 32 bits are enough for 2^31 elements
        ("min(B * T, 4000)", ROWS.replace("AT", "(size_t)r * C + c"), ""),
        ("B * T", ROWS.replace("AT", "(r * C + c) * 4u / 4u"), "values"),
        ("B * T", ROWS.replace("AT", "(size_t)((float)r * C) + c"), "bounds"),
        ("B * T", ROWS.replace("AT", "(int)(r * C * 4u) / 4 + c"), "bounds"),
        ("B * T", ROWS.replace("AT", "(size_t)(r & 0xfffff) * C + c"), "values"),
        ("min(B * T, 4000)", ROWS.replace("AT", "(size_t)r * C + c").replace("r += gridDim.x", "r += B * T"), "values"),
    ],
)
def test_indices_of_few_bits_and_capped_grids_show(grid: str, body: str, kind: str, tmp_path: Path) -> None:
    assert failure_of(ADD.replace("GRID", grid).replace("BODY", body), tmp_path)[0] == kind


@pytest.mark.slow
@pytest.mark.parametrize("count", ["long long", "int"])
def test_sizes_of_64_bits_stand_for_more_than_32_bits_index(count: str, tmp_path: Path) -> None:
    text = ADD.replace("int B, int T, int C", f"{count} n").replace("[[launch]]", '[bind]\nn = "B * T * C"\n[[launch]]')
    body = "int i = blockIdx.x * 256 + threadIdx.x; if (i < n) out[i] = a[i] + b[i];"
    text = text.replace("GRID", "ceil_div(B * T * C, 256)").replace("block = 64", "block = 256")
    kind, _ = failure_of(text.replace("BODY", body), tmp_path)
    assert kind == ("bounds" if count == "long long" else "")


@pytest.mark.slow
def test_an_index_in_a_float_writes_few_elements_many_times(tmp_path: Path) -> None:
    body = "float i = blockIdx.x * 64 + threadIdx.x; if (i < B * T * C) out[(int)i] = a[(int)i] + b[(int)i];"
    kind, text = failure_of(ADD.replace("GRID", "ceil_div(B * T * C, 64)").replace("BODY", body), tmp_path)
    assert kind == "values" and "threads" in text


@pytest.mark.slow
def test_blocks_that_end_elsewhere_are_no_failure(tmp_path: Path) -> None:
    """Blocks in the reverse order, and two for each element of which one does nothing."""
    rows = LOOP.replace("r = blockIdx.x", "r = B * T - 1 - blockIdx.x / 2").replace("STEP", "B * T")
    body = f"if (blockIdx.x % 2 == 0) {rows}{SUM}"
    assert failure_of(ADD.replace("GRID", "2 * B * T").replace("BODY", body), tmp_path) == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "kind"),
    [("triton.cdiv(a.numel(), 1024)", ""), ("min(triton.cdiv(a.numel(), 1024), 4096)", "values")],
)
def test_a_grid_that_triton_s_host_caps_shows(grid: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    assert failure_of(ADD_IN_TRITON.replace("GRID", grid), tmp_path, suffix=".py")[0] == kind
