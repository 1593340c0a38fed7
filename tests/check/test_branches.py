"""Branches choose shapes: code that no case reaches is reached by a shape that is judged, or named."""

from __future__ import annotations

import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest

from rung.check.judge import check, report_on
from rung.check.report import ALONE, CheckRequest, Failure, Report
from rung.check.runner import LocalRunner, capped
from rung.check.schedule import Procedure
from rung.check.trial import Trials
from rung.dtypes import dtype
from rung.emulator import coverage
from rung.errors import EmulatorFault
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung

BROKEN = Path(__file__).parents[1] / "broken"
ADD = """/*---
idea = "A way of its own for large tensors of whole vectors."
dtypes = ["f32"]
[[launch]]
kernel = "add"
grid = "min(ceil_div(B * T * C, 128), 64)"
block = 128
---*/
extern "C" __global__ void add(const float* a, const float* b, float* out, int B, int T, int C)
{
    __shared__ float kept[128];
    const int count = B * T * C, vectors = count / 4;
    if (count < 0) out[0] = a[1];
    if (vectors * 4 == count && vectors > 5100) {
        for (int i = blockIdx.x * 128 + threadIdx.x; i < count; i += gridDim.x * 128) {
            WRONG
        }
    } else {
        for (int i = blockIdx.x * 128 + threadIdx.x; i < count; i += gridDim.x * 128) out[i] = a[i] + b[i];
    }
}
"""


@pytest.mark.parametrize(
    ("inside", "error"),
    [
        ("out[i] = a[i] + b[i];", None),
        ("out[i] = a[i] + b[i - i % 2];", Failure),
        pytest.param(
            "kept[threadIdx.x] = b[i]; out[i] = a[i] + 0.0f * kept[threadIdx.x ^ 32] + b[i];",
            EmulatorFault,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_branch_that_no_case_reaches_is_judged_and_what_nothing_reaches_is_named(
    inside: str, error: type[Exception] | None, tmp_path: Path
) -> None:
    path = tmp_path / "own.cu"
    path.write_text(ADD.replace("WRONG", inside))
    rung = catalogue.rung_from_file(catalogue.operation("residual"), path)
    report, host = Report("residual/own", "f32", "emulator"), LocalRunner("emulator")
    trials = Trials(rung, dtype("f32"), "emulator", report, host, CheckRequest(effort=ALONE))
    procedure = Procedure(trials, 0, ALONE)
    host.coverage()
    procedure._every_case([(case, rung.operation.complete(case.values)) for case in rung.operation.cases[:4]])
    with pytest.raises(error) if error else nullcontext():
        procedure.at_branches()
    line = ADD.splitlines().index("            WRONG") + 1
    if error:
        assert report.case.startswith(f"for line {line - 1}"), report.case
        return
    missed = coverage.unreached(coverage.merged(trials.ran, host.coverage()))
    assert {place.line for place in missed if place.line >= line - 3} == {line - 3}, missed


def test_a_number_that_the_code_counts_on_stays_the_grid_s(tmp_path: Path) -> None:
    """gelu.cu's rows step by 500, as its grid has 500 blocks: fewer blocks would be another kernel."""
    rung = catalogue.rung_from_file(catalogue.operation("gelu"), BROKEN / "branches" / "gelu.cu")
    assert isinstance(rung, CudaRung) and capped(rung, 2).header == rung.header


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in (BROKEN / "branches").glob("*.cu")))
def test_kernels_with_ways_of_their_own_are_right_and_all_of_them_is_reached(name: str) -> None:
    path = BROKEN / "branches" / f"{name}.cu"
    report = check(catalogue.rung_from_file(catalogue.operation(name), path), "f32", device="emulator")
    assert report.verdict == "ok" and not report.unreached, report


@pytest.mark.slow
@pytest.mark.parametrize("number", range(18))
def test_a_mistake_in_such_a_way_is_refused(number: int, tmp_path: Path) -> None:
    of = tomllib.loads((BROKEN / "classes.toml").read_text())["class"]["branches that the cases do not reach"][number]
    path = tmp_path / "own.cu"
    path.write_text((BROKEN.parent / of["file"]).read_text().replace(of["before"], of["after"], 1))
    report = report_on(CheckRequest(f"{of['operation']}/own", "f32", file=str(path), effort=ALONE))
    assert report.verdict == "failed" and report.cause in ("values", "race"), report
