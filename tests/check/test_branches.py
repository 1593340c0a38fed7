"""Branches choose shapes: code that no case reaches is reached by a shape that is judged, or named."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gpuless.counts import coverage
from rung.check.judge import check, report_on
from rung.check.report import ALONE, CheckRequest, Failure, Report
from rung.check.runner import LocalRunner
from rung.check.schedule import Procedure
from rung.check.trial import Trial, Trials
from rung.dtypes import dtype
from rung.errors import EmulatorFault
from rung.operation import Case
from rung.rungs import catalogue

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


IN_TRITON = """import triton
import triton.language as tl


@triton.jit
def add(a, b, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    if count < 0: tl.store(out, 1.0)
    if count > 20400:
        WRONG
    else:
        tl.store(out + at, tl.load(a + at, mask=inside) + tl.load(b + at, mask=inside), mask=inside)


def run(a, b, out):
    count = a.numel()
    add[(triton.cdiv(count, 256),)](a, b, out, count, BLOCK=256)
"""
HALVES = "y = tl.load(b + at - at % 2, mask=inside)\n        "
TRITON_SUM = "x = tl.load(a + at, mask=inside)\n        HALVEStl.store(out + at, x + y, mask=inside)"


def at_branches_of(text: str, suffix: str, folder: Path) -> tuple[Procedure, Callable[[], None]]:
    """Four small cases have run; the rest runs the shapes for branches."""
    path = folder / f"own{suffix}"
    path.write_text(text)
    rung = catalogue.rung_from_file(catalogue.operation("residual"), path)
    report, host = Report("residual/own", "f32", "emulator"), LocalRunner("emulator")
    procedure = Procedure(Trials(rung, dtype("f32"), "emulator", report, host, CheckRequest(effort=ALONE)), 0, ALONE)
    host.coverage()
    procedure._every_case([(case, rung.operation.complete(case.values)) for case in rung.operation.cases[:4]])
    return procedure, procedure.at_branches


@pytest.mark.parametrize(
    ("text", "inside", "error"),
    [
        (ADD, "out[i] = a[i] + b[i];", None),
        (ADD, "out[i] = a[i] + b[i - i % 2];", Failure),
        pytest.param(
            ADD,
            "kept[threadIdx.x] = b[i]; out[i] = a[i] + 0.0f * kept[threadIdx.x ^ 32] + b[i];",
            EmulatorFault,
            marks=pytest.mark.slow,
        ),
        (IN_TRITON, "tl.store(out + at, tl.load(b + at, mask=inside) + tl.load(a + at, mask=inside), mask=inside)", None),
        (IN_TRITON, TRITON_SUM.replace("HALVES", HALVES), Failure),
    ],
)
def test_a_branch_that_no_case_reaches_is_judged_and_what_nothing_reaches_is_named(
    text: str, inside: str, error: type[Exception] | None, tmp_path: Path
) -> None:
    suffix = ".cu" if text == ADD else ".py"
    if suffix == ".py":
        pytest.importorskip("triton")
    procedure, at_branches = at_branches_of(text.replace("WRONG", inside), suffix, tmp_path)
    report, trials = procedure.report, procedure.trials
    with pytest.raises(error) if error else nullcontext():
        at_branches()
    lines = text.splitlines()
    never = next(n for n, line in enumerate(lines, 1) if "count < 0" in line)
    if error:
        first = next(n for n, line in enumerate(lines, 1) if "WRONG" in line)
        assert report.case.startswith((f"for line {first - 1}", f"for line {first}")), report.case
        return
    missed = coverage.unreached(coverage.merged(trials.ran, trials.host.coverage()))
    assert {p.line for p in missed if Path(p.file).name == f"own{suffix}" and p.line >= never} == {never}, missed


def slowed(clock: Callable[[], float], pace: float) -> Callable[[], float]:
    return lambda: pace * clock()


def test_the_shapes_of_branches_do_not_depend_on_the_machines_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[str]] = []
    at = Trials.at

    def noted(self: Trials, case: Case, *given: Any, **named: Any) -> Trial:
        tried[-1].append(case.name)
        return at(self, case, *given, **named)

    for pace in (1.0, 8.0):
        _, at_branches = at_branches_of(ADD.replace("WRONG", "out[i] = a[i] + b[i];"), ".cu", tmp_path)
        tried.append([])
        with monkeypatch.context() as patched:
            for clock in ("monotonic", "perf_counter", "process_time", "thread_time"):
                patched.setattr(time, clock, slowed(getattr(time, clock), pace))
            patched.setattr(Trials, "at", noted)
            at_branches()
    assert tried[0] == tried[1] and tried[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in (BROKEN / "branches").glob("*.cu")))
def test_kernels_with_ways_of_their_own_are_right_and_all_of_them_is_reached(name: str) -> None:
    path = BROKEN / "branches" / f"{name}.cu"
    report = check(catalogue.rung_from_file(catalogue.operation(name), path), "f32", device="emulator")
    assert report.verdict == "ok" and not report.unreached, report


ONE_OF_MANY = pytest.mark.xfail(reason="one number of 50,002 is within what float32 sums of so many differ by")


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(n, marks=[ONE_OF_MANY] if n == 14 else []) for n in range(18)])
def test_a_mistake_in_such_a_way_is_refused(number: int, tmp_path: Path) -> None:
    of = tomllib.loads((BROKEN / "classes.toml").read_text())["class"]["branches that the cases do not reach"][number]
    path = tmp_path / "own.cu"
    path.write_text((BROKEN.parent / of["file"]).read_text().replace(of["before"], of["after"], 1))
    report = report_on(CheckRequest(f"{of['operation']}/own", "f32", file=str(path), effort=ALONE))
    assert report.verdict == "failed" and report.cause in ("values", "race"), report
