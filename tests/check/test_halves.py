"""A file's second half of the check runs in a copy of the judge: its verdict counts, and so does its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gpuless
from emulation import needs_compiler
from rung.check import judge
from rung.check.report import ALONE, CheckRequest, Report
from rung.check.runner import PACE, Binding, emulated

RESIDUAL = """/*---
idea = "One thread per element."
dtypes = ["f32"]
[[launch]]
kernel = "add"
grid = "ceil_div(B * T * C, 64)"
block = 64
---*/
FIRST
extern "C" __global__ void add(const float* a, const float* b, float* out, int B, int T, int C)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < B * T * C) out[i] = a[i] + b[i];
    SECOND
}
"""


def written(folder: Path, second: str, first: str = "") -> Path:
    path = folder / "own.cu"
    path.write_text(RESIDUAL.replace("FIRST", first).replace("SECOND", second))
    return path


def verdict_on(folder: Path, second: str) -> Report:
    path = written(folder, second)
    return judge.report_on(CheckRequest("residual/own", "f32", "emulator", str(path), effort=ALONE))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("several", [1, 2])
def test_what_only_other_shapes_show_is_a_failure(
    several: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "processors", lambda: several)
    report = verdict_on(tmp_path, "if (T == 1 && B > 1 && C > 1 && i == 0) out[0] = 1.0f;")
    assert (report.verdict, report.cause) == ("failed", "values")
    assert report.failure["dims"]["T"] == 1 and report.failure["dims"]["B"] > 1
    assert report.failure["pairs"][0]["got"] == 1.0


@needs_compiler
@pytest.mark.slow
def test_a_right_file_counts_the_runs_of_both_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for several in (1, 2):
        monkeypatch.setattr(judge, "processors", lambda several=several: several)
        found.append(verdict_on(tmp_path, ""))
    one, two = found
    assert one.verdict == two.verdict == "ok", (one, two)
    assert (one.cases, one.left_out) == (two.cases, two.left_out)
    assert two.runs > 2100 + two.cases and abs(one.runs - two.runs) < one.cases


@pytest.mark.parametrize(("took", "units"), [(0.0, 6), (0.0001, 1), (0.03, 3), (1.0, 6)])
def test_a_call_that_ended_soon_is_stopped_soon_in_another_order(took: float, units: int) -> None:
    with emulated("emulator", Binding(), "reverse", took):
        assert gpuless.current().settings.steps == units * PACE


@pytest.mark.slow
def test_the_process_of_a_kernel_does_not_import_torchs_compiler() -> None:
    program = (
        "import os, socket, sys, torch, rung.check.sandboxed as s; empty = os.open(os.devnull, os.O_RDONLY);"
        "files = socket.socket(socket.AF_UNIX).detach();"
        "s.main(dict(device='emulator', mirrored=False, files=files, operation='relu', file='x', ask=empty));"
        "assert torch.empty(3).isnan().all(); print('torch._inductor.config' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "False", result
